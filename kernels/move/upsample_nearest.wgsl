fn compute(p: vec4<u32>) -> Element {
  let row = source_of(p.z, params.step_h, params.x_dims.z);
  let column = source_of(p.w, params.step_w, params.x_dims.w);
  return x_at(vec4<u32>(p.xy, row, column));
}

const ITEMS = 2u;

fn words_of(p: vec4<u32>) -> Words {
  let row = source_of(p.z, params.step_h, params.x_dims.z);
  let column = source_of(p.w, params.step_w, params.x_dims.w);
  return x_group(p.x, row, column, p.y);
}

// One float32 multiplication, so that every device finds the same element: floor(place * step), and for nearest-exact
// floor((2 * place + 1) * (step / 2)) with the halved step in params.step_*.
fn source_of(place: u32, step: f32, extent: u32) -> u32 {
  return min(u32(f32(place * params.factor + params.term) * step), extent - 1u);
}
