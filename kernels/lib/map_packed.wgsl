// One thread computes one word of the result: compute(p) -> i32 for each of its four elements.
// Elements outside the tensor (padding lanes) are 0.

fn compute_within(p: vec4<u32>) -> i32 {
  if (any(p >= params.y_dims)) { return 0; }
  return compute(p);
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
  let word = id.y * groups.x * 64u + id.x;
  if (word >= params.words) { return; }
  let p = y_coord(word);
  y[word] = packed(vec4<i32>(
    compute_within(p),
    compute_within(p + Y_LANE),
    compute_within(p + 2u * Y_LANE),
    compute_within(p + 3u * Y_LANE)));
}
