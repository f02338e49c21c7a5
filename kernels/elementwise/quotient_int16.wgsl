// The quotient of two tensors, one or both of them int16, defined in quotient_int16.py.
fn stored(steps: i32) -> i32 { return clamp(steps + params.zero, params.lo, params.hi); }

fn q16ta_div(a: i32, b: i32) -> i32 {
  let dividend = a - params.a_zero;
  let divisor = b - params.b_zero;
  if (divisor == 0) { return stored(sign(dividend) * i32(STEPS_LIMIT)); }
  let size = u32(abs(divisor));
  let shift = 15u - firstLeadingBit(size);
  let normalized = size << shift;
  let factor = ((params.mantissa / normalized) << 16u) + ((params.mantissa % normalized) << 16u) / normalized;
  let power = clamp(params.exponent + i32(shift) - 16, -100, 60);
  let product = f32(sign(divisor) * dividend) * f32(factor);
  return stored(round_within(product * bitcast<f32>(u32(power + 127) << 23u), STEPS_LIMIT));
}
