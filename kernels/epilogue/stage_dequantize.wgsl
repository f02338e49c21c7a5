// Four channels of a float32 result: the int8 value, dequantized, each where `place` says.
fn store_value(v: vec4<i32>, m: u32, quad: u32) {
  let real = vec4<f32>(joined(v, m, quad) - params.real_zero) * params.real_scale;
  for (var i = 0u; i < 4u; i++) {
    if (quad * 4u + i < params.channels) { y[place(m, quad * 4u + i)] = real[i]; }
  }
}
