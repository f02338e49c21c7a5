// Four channels of a float32 result: the accumulator itself, never rounded: (f32(acc) + f32(offset)) * multiplier.
fn quad_value(acc: vec4<i32>, channel: Channel, m: u32, quad: u32) -> vec4<i32> {
  return bitcast<vec4<i32>>((vec4<f32>(acc) + vec4<f32>(channel.offset)) * channel.multiplier);
}

fn store_value(v: vec4<i32>, m: u32, quad: u32) {
  let real = bitcast<vec4<f32>>(v);
  for (var i = 0u; i < 4u; i++) {
    if (quad * 4u + i < params.channels) { y[place(m, quad * 4u + i)] = real[i]; }
  }
}
