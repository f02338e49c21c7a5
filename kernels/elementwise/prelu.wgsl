// There is a slope for each index of dimension 1 of the logical tensor; params.inner consecutive elements share it.
fn compute(p: vec4<u32>) -> f32 {
  let channel = index_WIDTH_PACKED(p, params.y_dims) / params.inner % params.channels;
  let x = x_at(p);
  return select(x * slope[channel], x, x >= 0.0);
}
