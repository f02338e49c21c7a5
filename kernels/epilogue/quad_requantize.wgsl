// Epilogue of four channels of a weighted sum.
fn quad_value(acc: vec4<i32>, channel: Channel, m: u32, quad: u32) -> vec4<i32> {
  return finish(scaled_quad(acc, channel.multiplier) + channel.offset);
}
