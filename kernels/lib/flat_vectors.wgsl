// One thread computes a vector of four elements of a row-major result: computed_four(index of the vector).
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
  let at = id.y * groups.x * 64u + id.x;
  if (at * 4u < params.words) { y[at] = computed_four(at); }
}
