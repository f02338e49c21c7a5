// Epilogue of a weighted sum with an activation as a piecewise linear curve (kernels/epilogue/curve.py defines it).
fn requantize(acc: i32, channel: u32, p: vec4<u32>) -> i32 {
  let v = scaled_accumulator(acc - correction[channel], multiplier[channel]) + offset[channel];
  let within = clamp(v, 0, params.curve_end);
  let at = within >> FRACTION;
  let part = within & ((1i << FRACTION) - 1i);
  let value = curve[at] + (((curve[at + 1i] - curve[at]) * part) >> FRACTION);
  return clamp(rte(value, FRACTION) + params.zero, params.lo, params.hi);
}
