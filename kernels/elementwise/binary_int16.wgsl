// Functions of two tensors, one or both of them int16, defined in binary_int16.py.
fn stored(steps: i32) -> i32 { return clamp(steps + params.zero, params.lo, params.hi); }

fn a_steps(a: i32) -> i32 { return round_within(f32(a - params.a_zero) * params.a_multiplier, STEPS_LIMIT); }

fn b_steps(b: i32) -> i32 { return round_within(f32(b - params.b_zero) * params.b_multiplier, STEPS_LIMIT); }

fn q16ta_maximum(a: i32, b: i32) -> i32 { return stored(max(a_steps(a), b_steps(b))); }

fn q16ta_minimum(a: i32, b: i32) -> i32 { return stored(min(a_steps(a), b_steps(b))); }

// Products are compared as integers that have the order of the floats: a compiler could rewrite a comparison of two
// products.
fn in_order(number: f32) -> i32 {
  let bits = bitcast<i32>(number);
  return select(bits, -(bits & 0x7fffffff), bits < 0);
}

fn a_number(a: i32) -> i32 { return in_order(f32(a - params.a_zero) * params.a_multiplier); }

fn b_number(b: i32) -> i32 { return in_order(f32(b - params.b_zero) * params.b_multiplier); }

fn q16ta_gt(a: i32, b: i32) -> i32 { return stored(select(0, params.one, a_number(a) > b_number(b))); }

fn q16ta_ge(a: i32, b: i32) -> i32 { return stored(select(0, params.one, a_number(a) >= b_number(b))); }

fn q16ta_eq(a: i32, b: i32) -> i32 { return stored(select(0, params.one, a_number(a) == b_number(b))); }

fn q16ta_ne(a: i32, b: i32) -> i32 { return stored(select(0, params.one, a_number(a) != b_number(b))); }

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
