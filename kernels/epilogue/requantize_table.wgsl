// Epilogue of a weighted sum: an int8 value, then the table's entry for it.
fn requantize(acc: i32, channel: u32, p: vec4<u32>) -> i32 {
  let v = scaled_accumulator(acc - correction[channel], multiplier[channel]) + offset[channel];
  let at = u32(clamp(rte(v, FRACTION) + params.zero, params.lo, params.hi) + 128);
  return lane(table[at / 4u], at % 4u);
}
