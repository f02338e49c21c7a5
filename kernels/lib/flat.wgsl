// One thread computes one element of a row-major result: computed(index).
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
  let word = id.y * groups.x * 64u + id.x;
  if (word < params.words) { y[word] = computed(word); }
}
