// A strided move of whole items (words, or vectors of four) between buffers that hold elements in order: the digits of
// the result's item index, fastest first, give the index of the item it copies. All are loaded before the first is
// stored.
// Uses move.

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) local: u32,
        @builtin(workgroup_id) group: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>) {
  let at = (group.y * groups.x + group.x) * 256u + local;
  let a = x[source_index(at)];
  let b = x[source_index(at + 64u)];
  let c = x[source_index(at + 128u)];
  let d = x[source_index(at + 192u)];
  if (at < params.items) { y[at] = a; }
  if (at + 64u < params.items) { y[at + 64u] = b; }
  if (at + 128u < params.items) { y[at + 128u] = c; }
  if (at + 192u < params.items) { y[at + 192u] = d; }
}
