// Softmax with an int16 operand or result, as kernels/norm/softmax_int16.py defines it. The power of a distance 256 h +
// l is the product of powers[h] and powers[256 + l], in 2^-31.
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

// What q8ta_softmax's `compute` calls for int16.
const LEAST_INT16 = -32768;

fn with_wide_power(sum: Wide, distance: u32) -> Wide { return wide_sum(sum, Wide(power_at(distance), 0u)); }

fn quotient_int16(distance: u32, sum: Wide, unmasked: bool) -> i32 {
  let own = select(0u, power_at(distance), unmasked);
  return weight_of_power(select(own, power_at(0u), is_even(sum)), factor_of(total_of(sum)));
}
