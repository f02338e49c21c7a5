// Epilogue of four channels of a weighted sum: one int8 word. Per-channel operands are bound as vectors of four.

struct Channel { correction: vec4<i32>, multiplier: vec4<f32>, offset: vec4<i32> }

fn channel_quad(quad: u32) -> Channel { return Channel(correction[quad], multiplier[quad], offset[quad]); }

fn store_quad(acc: vec4<i32>, channel: Channel, m: u32, quad: u32) {
  let scaled = round(vec4<f32>(acc - channel.correction) * channel.multiplier);
  let v = vec4<i32>(clamp(scaled, vec4<f32>(-T_LIMIT), vec4<f32>(T_LIMIT))) + channel.offset;
  y[m * params.quads + quad] = finish(v);
}
