// Epilogue of a weighted sum: its accumulator to an int8 of the output.
fn requantize(acc: i32, channel: u32, p: vec4<u32>) -> i32 {
  let v = scaled_accumulator(acc - correction[channel], multiplier[channel]) + offset[channel];
  return clamp(rte(v, FRACTION) + params.zero, params.lo, params.hi);
}
