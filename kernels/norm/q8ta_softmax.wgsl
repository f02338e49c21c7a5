// Softmax of int8 or int16, as kernels/norm/q8ta_softmax.py defines it. The power of a distance 256 h + l is the product
// of powers[h] and powers[256 + l], in 2^-31. Linked: mask or no_mask.
const LEAST = -32768;

fn power_at(distance: u32) -> u32 {
  return wide_product(bitcast<u32>(powers[distance >> 8u]), bitcast<u32>(powers[256u + (distance & 255u)])).y;
}

// Whether all elements of a row have equal weights because all are masked. Each then has the power of distance 0.
fn is_even(sum: Wide) -> bool { return params.even == 1u && all(sum == Wide(0u)); }

fn total_of(sum: Wide) -> Wide {
  if (is_even(sum)) { return wide_product(params.length, power_at(0u)); }
  return sum;
}

// The factor of a row's powers: the dividend of 48 bits divided by the 24 highest bits of the row's sum, times a power
// of two.
fn factor_of(sum: Wide) -> f32 {
  let total = select(sum, Wide(max(sum.x, 1u << 30u), 0u), sum.y == 0u);
  let bits = select(firstLeadingBit(total.x) + 1u, firstLeadingBit(total.y) + 33u, total.y > 0u);
  let divisor = wide_right(total, bits - 24u).x;
  let first = params.dividend_high / divisor;
  let remainder = ((params.dividend_high - first * divisor) << 8u) | (params.dividend_low >> 8u);
  let second = remainder / divisor;
  let last = (((remainder - second * divisor) << 8u) | (params.dividend_low & 255u)) / divisor;
  let quotient = i32((first << 16u) + (second << 8u) + last);
  return f32(quotient) * bitcast<f32>(u32(params.exponent - i32(bits) + 127) << 23u);
}

fn weight_of_power(power: u32, factor: f32) -> i32 {
  return clamp(round_within(f32(i32(power)) * factor, STEPS_LIMIT) + params.zero, params.lo, params.hi);
}

// One element, where a row's elements are `inner` elements apart in memory.
fn element_coord(at: u32) -> vec4<u32> { return coord_WIDTH_PACKED(at, params.y_dims); }

fn compute(p: vec4<u32>) -> i32 {
  let at = index_WIDTH_PACKED(p, params.y_dims);
  let base = at - at / params.inner % params.length * params.inner;
  let length = loop_end(params.length, at);
  var largest = LEAST;
  for (var k = 0u; k < length; k++) {
    let q = element_coord(base + k * params.inner);
    if (is_unmasked(q)) { largest = max(largest, x_at(q)); }
  }
  var sum = Wide();
  for (var k = 0u; k < length; k++) {
    let q = element_coord(base + k * params.inner);
    if (is_unmasked(q)) { sum = wide_sum(sum, Wide(power_at(u32(largest - x_at(q))), 0u)); }
  }
  let own = select(0u, power_at(u32(max(largest - x_at(p), 0))), is_unmasked(p));
  return weight_of_power(select(own, power_at(0u), is_even(sum)), factor_of(total_of(sum)));
}
