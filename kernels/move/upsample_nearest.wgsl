fn compute(p: vec4<u32>) -> Element {
  let row = source_of(p.z, params.step_h, params.x_dims.z);
  let column = source_of(p.w, params.step_w, params.x_dims.w);
  return x_at(vec4<u32>(p.xy, row, column));
}

// The input index for an index of the result: floor(index * step), and for nearest-exact floor((2 * index + 1) * (step
// / 2)), where params.step_* is the halved step. It is one float32 multiplication, so that every device finds the same
// element.
fn source_of(index: u32, step: f32, extent: u32) -> u32 {
  return min(u32(f32(index * params.factor + params.term) * step), extent - 1u);
}
