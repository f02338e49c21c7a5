// One multiplier for a fixed divisor, else one for each divisor from 1 on.
fn multiplier_of(w: Window) -> f32 {
  return multiplier[select(w.divisor - 1u, 0u, params.divisor != 0u)];
}
