// A main for kernels that give take_row(team): a team of LANES threads computes a row (kernels/lib/rows.py). Teams past
// the last row repeat it and store nothing, since every thread must take part in every barrier.
struct Team { thread: u32, lane: u32, row: u32, stores: bool }

@compute @workgroup_size(THREADS)
fn main(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) thread: u32,
) {
  let place = (group.y * groups.x + group.x) * (THREADS / LANES) + thread / LANES;
  take_row(Team(thread, thread % LANES, min(place, params.rows - 1u), place < params.rows));
}
