// The integer arithmetic of the contract (q8ta_wgpu/ir/arithmetic.py defines it in numpy).

const FRACTION = 14u;
const INT16_FRACTION = 10u;
const T_LIMIT = 1073741824.0;
const TERM_LIMIT = 536854528.0;
const STEPS_LIMIT = 262144.0;

// v / 2^k rounded half to even, k >= 1.
fn rte(v: i32, k: u32) -> i32 {
  return (v + ((1i << (k - 1u)) - 1i) + ((v >> k) & 1i)) >> k;
}

// A float, infinities included but not NaN, clamped to [-limit, limit] and rounded half to even.
fn round_within(v: f32, limit: f32) -> i32 {
  return i32(clamp(round(v), -limit, limit));
}

// Four products of two values less their zero points, in steps of a result.
fn scaled_products(product: vec4<i32>, factor: f32) -> vec4<i32> {
  return vec4<i32>(clamp(round(vec4<f32>(product) * factor), vec4<f32>(-STEPS_LIMIT), vec4<f32>(STEPS_LIMIT)));
}

// Four accumulators in 2^-FRACTION output steps. The limit is an integer, so clamping first gives the same result.
// Rounding and conversion together are one instruction on some devices.
fn scaled_quad(acc: vec4<i32>, multiplier: vec4<f32>) -> vec4<i32> { return scaled_sums(vec4<f32>(acc), multiplier); }

fn scaled_sums(sums: vec4<f32>, multiplier: vec4<f32>) -> vec4<i32> {
  return vec4<i32>(round(clamp(sums * multiplier, vec4<f32>(-T_LIMIT), vec4<f32>(T_LIMIT))));
}

// Four numbers divided by 2^k, rounded half to even.
fn rte_quad(v: vec4<i32>, k: u32) -> vec4<i32> {
  let half = vec4<i32>((1i << (k - 1u)) - 1i) + ((v >> vec4<u32>(k)) & vec4<i32>(1));
  return (v + half) >> vec4<u32>(k);
}

// Four numbers of 2^-k output steps as int8 values.
fn int8_quad(v: vec4<i32>, k: u32, zero: i32, lo: i32, hi: i32) -> vec4<i32> {
  return clamp(rte_quad(v, k) + zero, vec4<i32>(lo), vec4<i32>(hi));
}

// An operand of a sum, in the fractions of a step that its multiplier counts.
fn scaled_term(steps: i32, multiplier: f32) -> i32 {
  return round_within(f32(steps) * multiplier, TERM_LIMIT);
}

fn scaled_terms(steps: vec4<i32>, multiplier: f32) -> vec4<i32> {
  return vec4<i32>(round(clamp(vec4<f32>(steps) * multiplier, vec4<f32>(-TERM_LIMIT), vec4<f32>(TERM_LIMIT))));
}

// (r, e + 133) for the scale of a row, which is r * 2^e with r in 64..127 and at least 1.
fn row_parts(scale: f32) -> vec2<u32> {
  let bits = bitcast<u32>(scale);
  return vec2<u32>(((bits & 0x7fffffu) | 0x800000u) >> 17u, clamp((bits >> 23u) & 255u, 127u, 227u));
}

// floor(2^30 / r) * 2^(up - 30 - e).
fn row_inverse(scale: f32, up: u32) -> f32 {
  let parts = row_parts(scale);
  return bitcast<f32>(bitcast<u32>(f32((1u << 30u) / parts.x)) + ((103u + up - parts.y) << 23u));
}

// Four multipliers times the scale of a row, rounded once. Mantissas are multiplied as integers: a compiler could
// contract a float product with the next one.
fn row_multiplier(multiplier: vec4<f32>, scale: f32) -> vec4<f32> {
  let parts = row_parts(scale);
  let bits = bitcast<vec4<u32>>(multiplier);
  let product = ((bits & vec4<u32>(0x7fffffu)) | vec4<u32>(0x800000u)) * parts.x;
  let exponents = ((bits >> vec4<u32>(23u)) + (parts.y - 283u)) << vec4<u32>(23u);
  return bitcast<vec4<f32>>(bitcast<vec4<u32>>(vec4<f32>(bitcast<vec4<i32>>(product))) + exponents);
}

fn is_nan(v: f32) -> bool {
  return (bitcast<u32>(v) & 0x7fffffffu) > 0x7f800000u;
}

// Four copies of an int8 in a word.
fn splat(v: i32) -> u32 {
  return (u32(v) & 0xffu) * 0x01010101u;
}

fn lane(word: u32, index: u32) -> i32 {
  return extractBits(bitcast<i32>(word), index * 8u, 8u);
}

// Four int16 in two words, the lower half of each first.
fn unpack4xI16(word: vec2<u32>) -> vec4<i32> {
  let low = bitcast<vec2<i32>>(word << vec2<u32>(16u)) >> vec2<u32>(16u);
  let high = bitcast<vec2<i32>>(word) >> vec2<u32>(16u);
  return vec4<i32>(low.x, high.x, low.y, high.y);
}

fn pack4xI16(v: vec4<i32>) -> vec2<u32> {
  let bits = bitcast<vec4<u32>>(v);
  return (bits.xz & vec2<u32>(0xffffu)) | (bits.yw << vec2<u32>(16u));
}

fn lane_int16(word: vec2<u32>, index: u32) -> i32 {
  return extractBits(bitcast<i32>(select(word.x, word.y, index > 1u)), index % 2u * 16u, 16u);
}

// The number of words, or of groups of four, that hold `extent` elements.
fn quads(extent: u32) -> u32 {
  return (extent + 3u) / 4u;
}

// x / divisor rounded as in IEEE 754, which WGSL does not promise. A float division gives the quotient of the mantissas
// up to a few steps. The remainder, computed in integers, says how many steps are missing.
fn divided(x: f32, divisor: f32) -> f32 {
  let a = bitcast<u32>(x) & 0x7fffffffu;
  let b = bitcast<u32>(divisor) & 0x7fffffffu;
  if (min(a, b) < 0x800000u || max(a, b) >= 0x7f800000u) { return x / divisor; }  // zero, denormal, infinite, NaN
  let m = (a & 0x7fffffu) | 0x800000u;
  let d = (b & 0x7fffffu) | 0x800000u;
  let shift = select(23u, 24u, m < d);  // the quotient lies between 2^23 and 2^24
  let near = i32(f32(m) / f32(d) * f32(1u << shift));
  let left = i32((m << shift) - u32(near) * d);  // modulo 2^32, which it is far below
  let whole = left / i32(d);
  let rest = 2 * (left - whole * i32(d));
  let n = near + whole + select(0, 1, rest > i32(d)) - select(0, 1, rest < -i32(d));
  let exponent = i32(a >> 23u) - i32(b >> 23u) + 150 - i32(shift);
  let size = u32(n - 0x800000 + (clamp(exponent, 0, 255) << 23u));
  let bits = select(min(size, 0x7f800000u), 0u, exponent <= 0);
  return bitcast<f32>(bits | ((bitcast<u32>(x) ^ bitcast<u32>(divisor)) & 0x80000000u));
}

// The exact remainder of x / divisor, with the sign of x (C's fmod). Mantissas are divided bit by bit.
fn trunc_remainder(x: f32, divisor: f32) -> f32 {
  let a = bitcast<u32>(x) & 0x7fffffffu;
  let b = bitcast<u32>(divisor) & 0x7fffffffu;
  if (a < b) { return x; }
  let whole = (b & 0x7fffffu) | select(0u, 0x800000u, b >= 0x800000u);
  var left = (a & 0x7fffffu) | select(0u, 0x800000u, a >= 0x800000u);
  let exponent = max(b >> 23u, 1u);
  for (var e = max(a >> 23u, 1u); e > exponent; e--) { left = select(left, left - whole, left >= whole) << 1u; }
  left = select(left, left - whole, left >= whole);
  let size = ldexp(f32(left), i32(exponent) - 150);
  return select(size, -size, x < 0.0);
}

// Whether two numbers other than 0 have different signs.
fn opposed(a: f32, b: f32) -> bool {
  let bits = bitcast<u32>(a);
  return (bits & 0x7fffffffu) != 0u && ((bits ^ bitcast<u32>(b)) >> 31u) == 1u;
}

// The integer quotient, rounded towards zero and rounded down.
fn whole_quotient(x: f32, divisor: f32) -> f32 { return round((x - trunc_remainder(x, divisor)) / divisor); }

fn floor_quotient(x: f32, divisor: f32) -> f32 {
  return whole_quotient(x, divisor) - select(0.0, 1.0, opposed(trunc_remainder(x, divisor), divisor));
}

fn floor_remainder(x: f32, divisor: f32) -> f32 {
  let left = trunc_remainder(x, divisor);
  return left + select(0.0, divisor, opposed(left, divisor));
}

fn logistic(x: f32) -> f32 {
  let e = exp(-abs(x));
  return select(e, 1.0, x >= 0.0) / (1.0 + e);
}

// The power series below 0.1, where the quotient would cancel; at 20 the result is 1 in float32.
fn tanh_of(x: f32) -> f32 {
  let m = min(abs(x), 20.0);
  let e = exp(-2.0 * m);
  let s = m * m;
  let series = m * (1.0 - s * (0.33333333 - s * 0.13333333));
  return sign(x) * select((1.0 - e) / (1.0 + e), series, m < 0.1);
}
