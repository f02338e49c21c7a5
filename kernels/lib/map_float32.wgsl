// One thread computes one element of a row-major float result: compute(p) -> f32.

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
  let word = id.y * groups.x * 64u + id.x;
  if (word >= params.words) { return; }
  y[word] = compute(y_coord(word));
}

// The larger and the smaller of two elements; NaN where either is, which `max` and `min` leave to the device.
fn maximum(a: f32, b: f32) -> f32 { return select(select(max(a, b), b, is_nan(b)), a, is_nan(a)); }
fn minimum(a: f32, b: f32) -> f32 { return select(select(min(a, b), b, is_nan(b)), a, is_nan(a)); }
