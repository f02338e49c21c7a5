// A strided move of whole items (words, or vectors of four) between buffers that hold elements in order: the digits of
// the result's item index, fastest first, give the index of the item it copies. All are loaded before the first is
// stored.
fn source_of(at: u32) -> u32 {
  var rest = at;
  var found = params.offset;
  let digits = loop_end(params.digits, rest);
  for (var i = 0u; i < 8u; i++) {
    if (i >= digits) { break; }
    let low = i < 4u;
    let size = select(params.size_high[i % 4u], params.size_low[i % 4u], low);
    let next = rest / size;
    found += (rest - next * size) * select(params.stride_high[i % 4u], params.stride_low[i % 4u], low);
    rest = next;
  }
  return found;
}

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) local: u32,
        @builtin(workgroup_id) group: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>) {
  let at = (group.y * groups.x + group.x) * 256u + local;
  let a = x[source_of(at)];
  let b = x[source_of(at + 64u)];
  let c = x[source_of(at + 128u)];
  let d = x[source_of(at + 192u)];
  if (at < params.items) { y[at] = a; }
  if (at + 64u < params.items) { y[at + 64u] = b; }
  if (at + 128u < params.items) { y[at + 128u] = c; }
  if (at + 192u < params.items) { y[at + 192u] = d; }
}
