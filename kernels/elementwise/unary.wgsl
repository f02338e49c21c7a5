// Elementwise functions of one tensor. Linked: at_number, the function NAME_of of the operator; params.a, .b, .c are its
// attributes in the order of its schema. A compiler may assume that there are no infinities and no NaN, so
// they are recognized by their bits. params.limits has the results at 0, -0, infinity and -infinity, and params.at_nan
// the result at NaN and outside of the domain; the host computes them from the definition. No intermediate value may be
// infinite or NaN.

// Abramowitz and Stegun 7.1.26, for z >= 0; absolute error 1.5e-7.
fn erfc(z: f32) -> f32 {
  let bounded = min(z, 10.0);
  let t = 1.0 / (1.0 + 0.3275911 * bounded);
  let polynomial = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
  return polynomial * exp(-bounded * bounded);
}

fn gelu_of(x: f32) -> f32 {
  let tail = 0.5 * x * erfc(abs(x) * 0.70710678);
  return select(tail, x - tail, x >= 0.0);
}

fn gelu_tanh_of(x: f32) -> f32 {
  let inner = clamp(x, -16.0, 16.0);
  return x * logistic(1.59576912 * (inner + 0.044715 * inner * inner * inner));
}

fn softplus_of(x: f32) -> f32 {
  let scaled = x * params.a;
  return select(max(x, 0.0) + log(1.0 + exp(-abs(scaled))) / params.a, x, scaled > params.b);
}

// x * tanh(softplus(x)), with tanh(log(1 + e^x)) written in e^-|x|.
fn mish_of(x: f32) -> f32 {
  let e = exp(-abs(x));
  let numerator = select(e * e + 2.0 * e, 1.0 + 2.0 * e, x >= 0.0);
  return x * (numerator / (numerator + 2.0 * select(1.0, e * e, x >= 0.0)));
}

// Integer exponents up to 8 by multiplication, which is exact in sign and accurate in the last bits.
fn pow_of(x: f32) -> f32 {
  let exponent = params.a;
  let size = abs(exponent);
  if (size <= 8.0 && floor(size) == size) {
    var product = 1.0;
    for (var i = 0u; i < 8u; i++) { product *= select(1.0, x, i < u32(size)); }
    return select(product, 1.0 / product, exponent < 0.0);
  }
  let magnitude = pow(abs(x), exponent);
  if (x < 0.0 && floor(exponent) != exponent) { return params.at_nan; }
  let odd = floor(exponent * 0.5) != exponent * 0.5;
  return select(magnitude, -magnitude, odd && x < 0.0);
}

fn erf_of(x: f32) -> f32 {
  let m = abs(x);
  let s = m * m;
  let series = m * (1.12837917 - s * (0.37612639 - s * (0.11283792 - s * 0.02686617)));
  return sign(x) * select(1.0 - erfc(m), series, m < 0.3);
}

// The binary digits of 2 / pi, 32 in a word, after a word of zeros.
const TWO_OVER_PI = array<u32, 8>(
  0u, 0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu);

// An angle as quarters of a turn, modulo 4, and a remainder in radians.
struct Angle { quarters: i32, rest: f32 }

// The range reduction of Payne and Hanek (1983), for |x| >= 2^16. x is m * 2^e. Of the digits of 2 / pi it uses only
// those that change the angle by less than a turn and by more than the resolution of float32.
fn large_angle(x: f32) -> Angle {
  let bits = bitcast<u32>(abs(x));
  let m = (bits & 0x7fffffu) | 0x800000u;
  let at = (bits >> 23u) - 120u;  // e - 2, counted from the word of zeros
  var words = TWO_OVER_PI;
  let i = at / 32u;
  let first = wide_left(Wide(words[i + 1u], words[i]), at % 32u).y;
  let second = wide_left(Wide(words[i + 2u], words[i + 1u]), at % 32u).y;
  let third = wide_left(Wide(words[i + 3u], words[i + 2u]), at % 32u).y;
  let low = wide_product(m, third).y;
  let lower_product = wide_sum(wide_product(m, second), Wide(low, 0u));
  let turn = Wide(lower_product.x, lower_product.y + m * first);  // in 2^-64 turns
  let quarters = (turn.y + 0x20000000u) >> 30u;
  var rest = Wide(turn.x, turn.y - (quarters << 30u));
  let negative = bitcast<i32>(rest.y) < 0;
  if (negative) { rest = wide_difference(Wide(0u, 0u), rest); }
  let angle = (f32(rest.y) * 4294967296.0 + f32(rest.x)) * 3.4061215e-19;  // 2 pi / 2^64
  let signed = select(angle, -angle, negative);
  return Angle(select(i32(quarters), -i32(quarters), x < 0.0), select(signed, -signed, x < 0.0));
}

// pi / 2 is subtracted as a sum of three floats (Cody and Waite). Up to 2^16 the product with the first is exact, and
// the error of the second is below 2e-6.
fn angle_of(x: f32) -> Angle {
  if (abs(x) >= 65536.0) { return large_angle(x); }
  let turns = round(x * 0.63661977);
  return Angle(i32(turns), ((x - turns * 1.5703125) - turns * 0.00048375129) - turns * 0.000000075497899);
}

// sin(x + quarters * pi / 2) by the polynomials of Cephes.
fn sine_of(x: f32, quarters: i32) -> f32 {
  let angle = angle_of(x);
  let r = angle.rest;
  let s = r * r;
  let sine = r + r * s * (-0.16666655 + s * (0.0083321609 - s * 0.00019515296));
  let cosine = 1.0 - 0.5 * s + s * s * (0.041666646 + s * (-0.0013887316 + s * 0.000024433157));
  let quadrant = angle.quarters + quarters;
  let value = select(sine, cosine, (quadrant & 1) == 1);
  return select(value, -value, (quadrant & 2) == 2);
}

// Infinity with the sign of x, from its bits: a compiler may assume that no expression is infinite.
fn infinity(x: f32) -> f32 { return bitcast<f32>(0x7f800000u | (bitcast<u32>(x) & 0x80000000u)); }

// The power series for small x, where 1 + x would lose digits.
fn log1p_of(x: f32) -> f32 {
  if (x < -1.0) { return params.at_nan; }
  if (x == -1.0) { return infinity(x); }
  let series = x * (1.0 - x * (0.5 - x * (0.33333333 - x * (0.25 - x * 0.2))));
  return select(log(1.0 + x), series, abs(x) < 0.06);
}

fn expm1_of(x: f32) -> f32 {
  let series = x * (1.0 + x * (0.5 + x * (0.16666667 + x * (0.041666667 + x * (0.0083333333 + x * 0.0013888889)))));
  return select(exp(x) - 1.0, series, abs(x) < 0.3);
}

fn sinh_of(x: f32) -> f32 {
  let half = 0.5 * exp(abs(x) - 1.0) * 2.7182818;
  let s = x * x;
  let series = x * (1.0 + s * (0.16666667 + s * (0.0083333333 + s * 0.0001984127)));
  return select(sign(x) * (half - 0.25 / half), series, abs(x) < 0.5);
}

fn cosh_of(x: f32) -> f32 {
  let half = 0.5 * exp(abs(x) - 1.0) * 2.7182818;
  return half + 0.25 / half;
}

// The polynomial of Cephes, for angles reduced to an eighth of a turn.
fn atan_of(x: f32) -> f32 {
  let m = abs(x);
  var base = 0.0;
  var r = m;
  if (m > 2.4142135) {
    base = 1.5707964;
    r = -1.0 / m;
  } else if (m > 0.41421357) {
    base = 0.78539819;
    r = (m - 1.0) / (m + 1.0);
  }
  let s = r * r;
  let series = ((0.080537445 * s - 0.13877685) * s + 0.19977711) * s - 0.3333295;
  return sign(x) * (base + (series * s * r + r));
}

// asin(x) for 0 <= x <= 0.5 by the polynomial of Cephes. asin and acos of larger numbers use the half angle.
fn asin_within(x: f32) -> f32 {
  let s = x * x;
  let series = ((((0.04216320 * s + 0.024181312) * s + 0.045470026) * s + 0.074953) * s + 0.16666752) * s;
  return series * x + x;
}

fn asin_of(x: f32) -> f32 {
  let m = abs(x);
  if (m > 1.0) { return params.at_nan; }
  let half = asin_within(sqrt(0.5 * (1.0 - max(m, 0.5))));
  return sign(x) * select(asin_within(min(m, 0.5)), 1.5707964 - 2.0 * half, m > 0.5);
}

fn acos_of(x: f32) -> f32 {
  if (abs(x) > 1.0) { return params.at_nan; }
  let half = 2.0 * asin_within(sqrt(0.5 * (1.0 - max(abs(x), 0.5))));
  return select(1.5707964 - asin_of(x), select(half, 3.1415927 - half, x < 0.0), abs(x) > 0.5);
}

// By log1p, which is accurate small 0. For large x it is log(2x).
fn asinh_of(x: f32) -> f32 {
  let m = min(abs(x), 1e4);
  let small = log1p_of(m + m * m / (1.0 + sqrt(m * m + 1.0)));
  return sign(x) * select(small, log(abs(x)) + 0.69314718, abs(x) > m);
}

fn acosh_of(x: f32) -> f32 {
  if (x < 1.0) { return params.at_nan; }
  let t = min(x, 1e4) - 1.0;
  return select(log1p_of(t + sqrt(t * (t + 2.0))), log(x) + 0.69314718, x > 1e4);
}

fn atanh_of(x: f32) -> f32 {
  let m = abs(x);
  if (m > 1.0) { return params.at_nan; }
  if (m == 1.0) { return infinity(x); }
  return sign(x) * 0.5 * log1p_of(2.0 * m / (1.0 - m));
}

fn erfc_of(x: f32) -> f32 {
  let tail = erfc(abs(x));
  return select(tail, 2.0 - tail, x < 0.0);
}

fn truth(holds: bool) -> f32 { return select(0.0, 1.0, holds); }

fn compute(p: vec4<u32>) -> f32 { return function_of(x_at(p)); }

fn computed_four(at: u32) -> vec4<f32> {
  let v = x[at];
  return vec4<f32>(function_of(v.x), function_of(v.y), function_of(v.z), function_of(v.w));
}

fn function_of(x: f32) -> f32 {
  let bits = bitcast<u32>(x);
  let size = bits & 0x7fffffffu;
  if (is_nan(x)) { return params.at_nan; }
  if (size == 0u) { return bitcast<f32>(select(params.limits.x, params.limits.y, bits != 0u)); }
  if (size == 0x7f800000u) { return bitcast<f32>(select(params.limits.z, params.limits.w, bits != size)); }
  return at_number(x);
}

// --- functions that are one expression ---

fn relu_of(x: f32) -> f32 { return max(x, 0.0); }
fn clamp_of(x: f32) -> f32 { return min(max(x, params.a), params.b); }
fn sigmoid_of(x: f32) -> f32 { return logistic(x); }
fn silu_of(x: f32) -> f32 { return x * logistic(x); }
fn hardswish_of(x: f32) -> f32 { return x * (clamp(x + 3.0, 0.0, 6.0) / 6.0); }
fn hardsigmoid_of(x: f32) -> f32 { return clamp(x + 3.0, 0.0, 6.0) / 6.0; }
fn leaky_relu_of(x: f32) -> f32 { return select(x * params.a, x, x >= 0.0); }
fn elu_of(x: f32) -> f32 {
  return select(params.a * params.b * (exp(min(x, 0.0) * params.c) - 1.0), params.b * x, x > 0.0);
}
fn exp_of(x: f32) -> f32 { return exp(x); }
fn log_of(x: f32) -> f32 { return select(log(x), params.at_nan, x < 0.0); }
fn sqrt_of(x: f32) -> f32 { return select(sqrt(x), params.at_nan, x < 0.0); }
fn rsqrt_of(x: f32) -> f32 { return select(inverseSqrt(x), params.at_nan, x < 0.0); }
fn reciprocal_of(x: f32) -> f32 { return 1.0 / x; }
fn abs_of(x: f32) -> f32 { return abs(x); }
fn sin_of(x: f32) -> f32 { return sine_of(x, 0); }
fn cos_of(x: f32) -> f32 { return sine_of(x, 1); }
fn quick_gelu_of(x: f32) -> f32 { return x * logistic(1.702 * x); }
fn softsign_of(x: f32) -> f32 { return divided(x, 1.0 + abs(x)); }  // WGSL may divide by 2^126 and more to 0
fn tan_of(x: f32) -> f32 { return sine_of(x, 0) / sine_of(x, 1); }
fn ceil_of(x: f32) -> f32 { return ceil(x); }
fn trunc_of(x: f32) -> f32 { return trunc(x); }
fn divide_of(x: f32) -> f32 { return divided(x, params.a); }
fn floor_divide_of(x: f32) -> f32 { return floor_quotient(x, params.a); }
fn trunc_divide_of(x: f32) -> f32 { return whole_quotient(x, params.a); }
fn remainder_of(x: f32) -> f32 { return floor_remainder(x, params.a); }
fn fmod_of(x: f32) -> f32 { return trunc_remainder(x, params.a); }
fn isnan_of(x: f32) -> f32 { return 0.0; }
fn isinf_of(x: f32) -> f32 { return 0.0; }
fn floor_of(x: f32) -> f32 { return floor(x); }
fn round_of(x: f32) -> f32 { return round(x); }
fn sign_of(x: f32) -> f32 { return sign(x); }
fn gt_scalar_of(x: f32) -> f32 { return truth(x > params.a); }
fn ge_scalar_of(x: f32) -> f32 { return truth(x >= params.a); }
fn lt_scalar_of(x: f32) -> f32 { return truth(x < params.a); }
fn le_scalar_of(x: f32) -> f32 { return truth(x <= params.a); }
fn eq_scalar_of(x: f32) -> f32 { return truth(x == params.a); }
fn ne_scalar_of(x: f32) -> f32 { return truth(x != params.a); }
fn affine_of(x: f32) -> f32 { return params.a * x + params.b; }
