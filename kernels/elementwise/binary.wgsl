// Elements of two operands; a dimension of extent 1 is read at 0.
fn add(p: vec4<u32>) -> Element {
  let a = a_at(min(p, params.a_dims - 1u));
  let b = b_at(min(p, params.b_dims - 1u));
  return a + params.alpha * b;
}

fn mul(p: vec4<u32>) -> Element {
  let a = a_at(min(p, params.a_dims - 1u));
  let b = b_at(min(p, params.b_dims - 1u));
  return a * b;
}

// Divisions by zero are told by the divisor's bits: a shader may be compiled as if there were no infinities.
fn div(p: vec4<u32>) -> f32 {
  let a = a_at(min(p, params.a_dims - 1u));
  let b = b_at(min(p, params.b_dims - 1u));
  if ((bitcast<u32>(b) & 0x7fffffffu) != 0u) { return divided(a, b); }
  let sign = (bitcast<u32>(a) ^ bitcast<u32>(b)) & 0x80000000u;
  let nothing = is_nan(a) || (bitcast<u32>(a) & 0x7fffffffu) == 0u;
  return bitcast<f32>(select(0x7f800000u | sign, params.not_a_number, nothing));
}

fn floor_divide_tensors(p: vec4<u32>) -> f32 {
  let a = a_at(min(p, params.a_dims - 1u));
  let b = b_at(min(p, params.b_dims - 1u));
  let infinite = (bitcast<u32>(a) & 0x7fffffffu) == 0x7f800000u;
  let nothing = is_nan(a) || is_nan(b) || infinite || (bitcast<u32>(a) & 0x7fffffffu) == 0u;
  if ((bitcast<u32>(b) & 0x7fffffffu) == 0u) {
    let sign = (bitcast<u32>(a) ^ bitcast<u32>(b)) & 0x80000000u;
    return bitcast<f32>(select(0x7f800000u | sign, params.not_a_number, nothing && !infinite));
  }
  if (is_nan(a) || is_nan(b) || infinite) { return bitcast<f32>(params.not_a_number); }
  return floor_quotient(a, b);
}

fn remainder_tensors(p: vec4<u32>) -> f32 {
  let a = a_at(min(p, params.a_dims - 1u));
  let b = b_at(min(p, params.b_dims - 1u));
  let infinite = (bitcast<u32>(a) & 0x7fffffffu) == 0x7f800000u;
  let nothing = is_nan(a) || is_nan(b) || infinite || (bitcast<u32>(b) & 0x7fffffffu) == 0u;
  if (nothing) { return bitcast<f32>(params.not_a_number); }
  return floor_remainder(a, b);
}

fn maximum(p: vec4<u32>) -> f32 {
  let a = a_at(min(p, params.a_dims - 1u));
  let b = b_at(min(p, params.b_dims - 1u));
  return select(select(b, a, a > b || is_nan(a)), b, is_nan(b));
}

fn minimum(p: vec4<u32>) -> f32 {
  let a = a_at(min(p, params.a_dims - 1u));
  let b = b_at(min(p, params.b_dims - 1u));
  return select(select(b, a, a < b || is_nan(a)), b, is_nan(b));
}

// Of negative numbers whole exponents alone have a power, with the sign of the odd ones; to the power of 0 all is 1.
fn pow_tensors(p: vec4<u32>) -> f32 {
  let a = a_at(min(p, params.a_dims - 1u));
  let b = b_at(min(p, params.b_dims - 1u));
  if (b == 0.0 && !is_nan(b)) { return 1.0; }
  let negative = a < 0.0 && bitcast<u32>(a) != 0xff800000u;
  if (is_nan(a) || is_nan(b) || (negative && floor(b) != b)) { return bitcast<f32>(params.not_a_number); }
  let odd = floor(b) == b && floor(b * 0.5) != b * 0.5;
  let magnitude = pow(abs(a), b);
  return select(magnitude, -magnitude, odd && a < 0.0);
}

// The larger one by what the other adds to it, so that no square overflows.
fn hypot(p: vec4<u32>) -> f32 {
  let a = abs(a_at(min(p, params.a_dims - 1u)));
  let b = abs(b_at(min(p, params.b_dims - 1u)));
  if (bitcast<u32>(a) == 0x7f800000u) { return a; }
  if (bitcast<u32>(b) == 0x7f800000u) { return b; }
  if (is_nan(a) || is_nan(b)) { return bitcast<f32>(params.not_a_number); }
  let large = max(a, b);
  let ratio = min(a, b) / max(large, 1e-37);
  return large * sqrt(1.0 + ratio * ratio);
}

// The angle of (b, a) within the first eighth of the circle, mirrored to where it lies; signs by bits, as zeros have one.
fn atan2_tensors(p: vec4<u32>) -> f32 {
  let a = a_at(min(p, params.a_dims - 1u));
  let b = b_at(min(p, params.b_dims - 1u));
  if (is_nan(a) || is_nan(b)) { return bitcast<f32>(params.not_a_number); }
  let high = min(abs(a), 3e38);
  let wide = min(abs(b), 3e38);
  let eighth = atan(min(high, wide) / max(max(high, wide), 1e-37));
  let quarter = select(eighth, 1.57079633 - eighth, high > wide);
  let half = select(quarter, 3.14159265 - quarter, (bitcast<u32>(b) & 0x80000000u) != 0u);
  return bitcast<f32>(bitcast<u32>(half) | (bitcast<u32>(a) & 0x80000000u));
}

// Comparisons, 1 where they hold; with NaN none does but that two are different.
fn gt(p: vec4<u32>) -> f32 {
  let a = a_at(min(p, params.a_dims - 1u));
  let b = b_at(min(p, params.b_dims - 1u));
  return select(0.0, 1.0, a > b && !is_nan(a) && !is_nan(b));
}

fn ge(p: vec4<u32>) -> f32 {
  let a = a_at(min(p, params.a_dims - 1u));
  let b = b_at(min(p, params.b_dims - 1u));
  return select(0.0, 1.0, a >= b && !is_nan(a) && !is_nan(b));
}

fn eq(p: vec4<u32>) -> f32 {
  let a = a_at(min(p, params.a_dims - 1u));
  let b = b_at(min(p, params.b_dims - 1u));
  return select(0.0, 1.0, a == b && !is_nan(a) && !is_nan(b));
}

fn ne(p: vec4<u32>) -> f32 { return 1.0 - eq(p); }
