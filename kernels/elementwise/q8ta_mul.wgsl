fn apply(a: i32, b: i32) -> i32 {
  let product = (a - params.a_zero) * (b - params.b_zero);
  return clamp(round_within(f32(product) * params.multiplier, 1024.0) + params.zero, params.lo, params.hi);
}
