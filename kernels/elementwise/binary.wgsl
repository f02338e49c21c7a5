// Functions of two elements. Operands are read by coordinates (compute), where dimensions of extent 1 are broadcast, or
// by the index of a vector of four (computed_four). Linked: apply; first and second, which read four elements of an
// operand by an index of the result.
fn compute(p: vec4<u32>) -> Element {
  return apply(a_at(min(p, params.a_dims - 1u)), b_at(min(p, params.b_dims - 1u)));
}

fn computed_four(at: u32) -> vec4<Element> {
  let left = first(at);
  let right = second(at);
  return vec4<Element>(
    apply(left.x, right.x), apply(left.y, right.y), apply(left.z, right.z), apply(left.w, right.w));
}

fn first_four_same(at: u32) -> vec4<Element> { return a[at]; }
fn first_four_line(at: u32) -> vec4<Element> { return a[at % (params.a_count / 4u)]; }
fn first_four_run(at: u32) -> vec4<Element> { return vec4<Element>(a[at * 4u / params.a_inner % params.a_count]); }
fn second_four_same(at: u32) -> vec4<Element> { return b[at]; }
fn second_four_line(at: u32) -> vec4<Element> { return b[at % (params.b_count / 4u)]; }
fn second_four_run(at: u32) -> vec4<Element> { return vec4<Element>(b[at * 4u / params.b_inner % params.b_count]); }

fn add(a: Element, b: Element) -> Element { return a + params.alpha * b; }
fn mul(a: Element, b: Element) -> Element { return a * b; }

// A zero divisor is recognized by its bits: a compiler may assume that there are no infinities.
fn div(a: f32, b: f32) -> f32 {
  if ((bitcast<u32>(b) & 0x7fffffffu) != 0u) { return divided(a, b); }
  let sign = (bitcast<u32>(a) ^ bitcast<u32>(b)) & 0x80000000u;
  let undefined = is_nan(a) || (bitcast<u32>(a) & 0x7fffffffu) == 0u;
  return bitcast<f32>(select(0x7f800000u | sign, params.not_a_number, undefined));
}

fn floor_divide_tensors(a: f32, b: f32) -> f32 {
  let infinite = (bitcast<u32>(a) & 0x7fffffffu) == 0x7f800000u;
  let undefined = is_nan(a) || is_nan(b) || infinite || (bitcast<u32>(a) & 0x7fffffffu) == 0u;
  if ((bitcast<u32>(b) & 0x7fffffffu) == 0u) {
    let sign = (bitcast<u32>(a) ^ bitcast<u32>(b)) & 0x80000000u;
    return bitcast<f32>(select(0x7f800000u | sign, params.not_a_number, undefined && !infinite));
  }
  if (is_nan(a) || is_nan(b) || infinite) { return bitcast<f32>(params.not_a_number); }
  return floor_quotient(a, b);
}

fn remainder_tensors(a: f32, b: f32) -> f32 {
  let infinite = (bitcast<u32>(a) & 0x7fffffffu) == 0x7f800000u;
  let undefined = is_nan(a) || is_nan(b) || infinite || (bitcast<u32>(b) & 0x7fffffffu) == 0u;
  if (undefined) { return bitcast<f32>(params.not_a_number); }
  return floor_remainder(a, b);
}

// A negative base needs an integer exponent, and an odd one gives a negative result. Anything to the power of 0 is 1.
fn pow_tensors(a: f32, b: f32) -> f32 {
  if (b == 0.0 && !is_nan(b)) { return 1.0; }
  let negative = a < 0.0 && bitcast<u32>(a) != 0xff800000u;
  if (is_nan(a) || is_nan(b) || (negative && floor(b) != b)) { return bitcast<f32>(params.not_a_number); }
  let odd = floor(b) == b && floor(b * 0.5) != b * 0.5;
  let magnitude = pow(abs(a), b);
  return select(magnitude, -magnitude, odd && a < 0.0);
}

// large * sqrt(1 + (small / large)^2), so that no square overflows.
fn hypot(x: f32, y: f32) -> f32 {
  let a = abs(x);
  let b = abs(y);
  if (bitcast<u32>(a) == 0x7f800000u) { return a; }
  if (bitcast<u32>(b) == 0x7f800000u) { return b; }
  if (is_nan(a) || is_nan(b)) { return bitcast<f32>(params.not_a_number); }
  let large = max(a, b);
  let ratio = min(a, b) / max(large, 1e-37);
  return large * sqrt(1.0 + ratio * ratio);
}

// The angle of (b, a): computed in the first eighth of the circle, then mirrored. Signs are taken from the bits, since
// zeros have signs.
fn atan2_tensors(a: f32, b: f32) -> f32 {
  if (is_nan(a) || is_nan(b)) { return bitcast<f32>(params.not_a_number); }
  let height = min(abs(a), 3e38);
  let width = min(abs(b), 3e38);
  let eighth = atan(min(height, width) / max(max(height, width), 1e-37));
  let quarter = select(eighth, 1.57079633 - eighth, height > width);
  let half = select(quarter, 3.14159265 - quarter, (bitcast<u32>(b) & 0x80000000u) != 0u);
  return bitcast<f32>(bitcast<u32>(half) | (bitcast<u32>(a) & 0x80000000u));
}

// Comparisons: 1 where they hold, else 0. With NaN only `ne` holds.
fn gt(a: f32, b: f32) -> f32 { return numbers_hold(a > b, a, b); }
fn ge(a: f32, b: f32) -> f32 { return numbers_hold(a >= b, a, b); }
fn eq(a: f32, b: f32) -> f32 { return numbers_hold(a == b, a, b); }
fn ne(a: f32, b: f32) -> f32 { return 1.0 - eq(a, b); }
fn numbers_hold(holds: bool, a: f32, b: f32) -> f32 { return select(0.0, 1.0, holds && !is_nan(a) && !is_nan(b)); }
