// All threads of a workgroup compute one element of a row-major float result (kernels/lib/share.py).
@compute @workgroup_size(THREADS)
fn main(@builtin(local_invocation_index) thread: u32,
        @builtin(workgroup_id) group: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>) {
  let word = group.y * groups.x + group.x;
  let p = y_coord(min(word, params.words - 1u));
  let merged = reduced(thread, partial_result(p, first_of(thread)));
  if (thread == 0u && word < params.words) { y[word] = finish(p, merged); }
}
