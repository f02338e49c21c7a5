// One float32 multiplication, so that every device finds the same element: floor(place * step), and for nearest-exact
// floor((2 * place + 1) * (step / 2)) with the halved step in params.step_*.
fn source_of(place: u32, step: f32, extent: u32) -> u32 {
  return min(u32(f32(place * params.factor + params.term) * step), extent - 1u);
}
