// A float32 result: the int8 value, dequantized.
fn real_of(acc: i32, channel: u32, p: vec4<u32>) -> f32 {
  return f32(requantize(acc, channel, p) - params.real_zero) * params.real_scale;
}
