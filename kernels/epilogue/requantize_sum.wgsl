// Epilogue of a weighted sum: an int8 value, then q8ta_add of it and an addend.
fn requantize(acc: i32, channel: u32, p: vec4<u32>) -> i32 {
  let v = scaled_accumulator(acc - correction[channel], multiplier[channel]) + offset[channel];
  let inner = clamp(rte(v, FRACTION) + params.zero, params.lo, params.hi);
  let sum = (inner - params.zero) * params.inner_multiplier
    + (addend_at(p) - params.addend_zero) * params.addend_multiplier;
  return clamp(rte(sum, params.shift) + params.sum_zero, params.sum_lo, params.sum_hi);
}
