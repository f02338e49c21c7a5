// Per-channel operands of four channels, bound as vectors of four, and the way from accumulators to the result: first a
// value in registers (quad_value), then what is read and written for it (store_value).
struct Channel { multiplier: vec4<f32>, offset: vec4<i32> }

fn channel_quad(quad: u32) -> Channel { return Channel(multiplier[quad], offset[quad]); }

fn start_quad(quad: u32) -> vec4<i32> { return -correction[quad]; }

fn store_quad(acc: vec4<i32>, channel: Channel, m: u32, quad: u32) {
  store_value(quad_value(acc, channel, m, quad), m, quad);
}
