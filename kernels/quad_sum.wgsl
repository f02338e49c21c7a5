// The accumulator itself, never rounded: (f32(acc) + f32(offset)) * multiplier.
fn quad_real(acc: vec4<i32>, channel: Channel, m: u32, quad: u32) -> vec4<f32> {
  return (vec4<f32>(acc) + vec4<f32>(channel.offset)) * channel.multiplier;
}
