// Sums rounded to int8 and clamped.
fn quad_value(acc: vec4<i32>, channel: Channel, m: u32, quad: u32) -> vec4<i32> {
  let v = unrounded(scaled_quad(acc, channel.multiplier) + channel.offset, m, quad);
  return int8_quad(v, FRACTION, params.zero, params.lo, params.hi);
}
