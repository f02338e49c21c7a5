// As quad_requantize, with a residual that joins before rounding; it lies in the result's layout.

struct Channel { multiplier: vec4<f32>, offset: vec4<i32> }

fn channel_quad(quad: u32) -> Channel { return Channel(multiplier[quad], offset[quad]); }

fn start_quad(quad: u32) -> vec4<i32> { return -correction[quad]; }

fn store_quad(acc: vec4<i32>, channel: Channel, m: u32, quad: u32) {
  let scaled = scaled_quad(acc, channel.multiplier);
  let joined = (unpack4xI8(residual[m * params.quads + quad]) - params.residual_zero) * params.residual_multiplier;
  let v = scaled + channel.offset + joined;
  y[m * params.quads + quad] = finish(v);
}
