// Four channels of a float32 result, each where `place` says.
fn store_quad(acc: vec4<i32>, channel: Channel, m: u32, quad: u32) {
  let real = quad_real(acc, channel, m, quad);
  for (var i = 0u; i < 4u; i++) {
    if (quad * 4u + i < params.channels) { y[place(m, quad * 4u + i)] = real[i]; }
  }
}
