// Epilogue of a weighted sum with a residual that joins before rounding.
fn requantize(acc: i32, channel: u32, p: vec4<u32>) -> i32 {
  let joined = (residual_at(p) - params.residual_zero) * params.residual_multiplier;
  let v = scaled_accumulator(acc - correction[channel], multiplier[channel]) + offset[channel] + joined;
  return clamp(rte(v, FRACTION) + params.zero, params.lo, params.hi);
}
