// params.offset is minus the zero points times their multipliers: sums wrap modulo 2^32, the whole of one fits.
fn apply(a: i32, b: i32) -> i32 {
  let v = a * params.a_multiplier + (b * params.b_multiplier + params.offset);
  return clamp(rte(v, params.shift) + params.zero, params.lo, params.hi);
}
