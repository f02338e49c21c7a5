// A main for kernels that define take_row(team): a team of LANES threads computes a row (kernels/lib/rows.py). Teams
// past the last row repeat that row and store nothing, since every thread must reach every barrier.
struct Team { thread: u32, lane: u32, row: u32, stores: bool }

@compute @workgroup_size(THREADS)
fn main(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) thread: u32,
) {
  let index = (group.y * groups.x + group.x) * (THREADS / LANES) + thread / LANES;
  take_row(Team(thread, thread % LANES, min(index, params.rows - 1u), index < params.rows));
}
