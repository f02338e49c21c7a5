// As direct.wgsl by a team of threads, a whole workgroup, that share the sum (kernels/lib/share.py).
alias Partial = Acc;
fn merge(a: Partial, b: Partial) -> Partial { return a + b; }

@compute @workgroup_size(THREADS)
fn main(@builtin(local_invocation_index) thread: u32,
        @builtin(workgroup_id) group: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>) {
  let index = group.y * groups.x + group.x;
  let m = index / params.quads;
  let quad = index % params.quads;
  let p = position(m, quad);
  let whole = reduced(thread, part(min(p, params.sums - 1u), first_of(thread)));
  if (thread == 0u && p.x < params.sums.x) { store_quad(whole, channel_quad(quad), m, quad); }
}
