// Elements of two operands; a dimension of extent 1 is read at 0.
fn add(p: vec4<u32>) -> f32 {
  let a = a_at(min(p, params.a_dims - 1u));
  let b = b_at(min(p, params.b_dims - 1u));
  return a + params.alpha * b;
}

fn mul(p: vec4<u32>) -> f32 {
  let a = a_at(min(p, params.a_dims - 1u));
  let b = b_at(min(p, params.b_dims - 1u));
  return a * b;
}

// Divisions by zero are told by the divisor's bits: a shader may be compiled as if there were no infinities.
fn div(p: vec4<u32>) -> f32 {
  let a = a_at(min(p, params.a_dims - 1u));
  let b = b_at(min(p, params.b_dims - 1u));
  if ((bitcast<u32>(b) & 0x7fffffffu) != 0u) { return a / b; }
  let sign = (bitcast<u32>(a) ^ bitcast<u32>(b)) & 0x80000000u;
  let nothing = is_nan(a) || (bitcast<u32>(a) & 0x7fffffffu) == 0u;
  return bitcast<f32>(select(0x7f800000u | sign, params.not_a_number, nothing));
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
