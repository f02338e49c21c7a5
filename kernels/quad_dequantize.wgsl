// The int8 value, dequantized.
fn quad_real(acc: vec4<i32>, channel: Channel, m: u32, quad: u32) -> vec4<f32> {
  return vec4<f32>(quad_value(acc, channel, m, quad) - params.real_zero) * params.real_scale;
}
