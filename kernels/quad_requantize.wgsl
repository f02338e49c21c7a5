// Epilogue of four channels of a weighted sum: one int8 word. Per-channel operands are bound as vectors of four.

struct Channel { multiplier: vec4<f32>, offset: vec4<i32> }

fn channel_quad(quad: u32) -> Channel { return Channel(multiplier[quad], offset[quad]); }

fn start_quad(quad: u32) -> vec4<i32> { return -correction[quad]; }

fn store_quad(acc: vec4<i32>, channel: Channel, m: u32, quad: u32) {
  let scaled = scaled_quad(acc, channel.multiplier);
  let v = scaled + channel.offset;
  y[m * params.quads + quad] = finish(v);
}
