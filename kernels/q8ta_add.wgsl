fn apply(a: i32, b: i32) -> i32 {
  let v = (a - params.a_zero) * params.a_multiplier + (b - params.b_zero) * params.b_multiplier;
  return clamp(rte(v, params.shift) + params.zero, params.lo, params.hi);
}
