// The main of general kernels: a thread makes four channels of one sum. Linked: partial_result(p, first), the
// accumulators.
// Uses quad.
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
  let index = id.y * groups.x * 64u + id.x;
  let m = index / params.quads;
  let quad = index % params.quads;
  let p = position(m, quad);
  if (p.x >= params.sums.x) { return; }
  store_quad(partial_result(p, vec4<u32>()), channel_quad(quad), m, quad);
}
