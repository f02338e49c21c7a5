// Four channels of an int8 result: one word.
fn store_quad(acc: vec4<i32>, channel: Channel, m: u32, quad: u32) {
  y[m * params.quads + quad] = pack4xI8(quad_value(acc, channel, m, quad));
}
