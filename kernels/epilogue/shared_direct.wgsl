// As direct.wgsl, but all threads of a workgroup share one sum (kernels/lib/share.py).
// Uses quad.
alias Partial = Acc;

@compute @workgroup_size(THREADS)
fn main(@builtin(local_invocation_index) thread: u32,
        @builtin(workgroup_id) group: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>) {
  let index = group.y * groups.x + group.x;
  let m = index / params.quads;
  let quad = index % params.quads;
  let p = position(m, quad);
  let merged = reduced(thread, partial_result(min(p, params.sums - 1u), first_of(thread)));
  if (thread == 0u && p.x < params.sums.x) { store_quad(merged, channel_quad(quad), m, quad); }
}
