// A float32 result: the accumulator itself, never rounded.
fn real_of(acc: i32, channel: u32, p: vec4<u32>) -> f32 {
  return (f32(acc - correction[channel]) + f32(offset[channel])) * multiplier[channel];
}
