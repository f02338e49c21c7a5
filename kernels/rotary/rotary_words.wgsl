// A thread computes one word of the result.
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
  let word = id.y * groups.x * 64u + id.x;
  if (word < params.words) { y[word] = rotated_by_words(y_coord(word)); }
}
