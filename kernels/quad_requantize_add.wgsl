// As quad_requantize, with a residual that joins before rounding; it lies in the result's layout.

struct Channel { correction: vec4<i32>, multiplier: vec4<f32>, offset: vec4<i32> }

fn channel_quad(quad: u32) -> Channel { return Channel(correction[quad], multiplier[quad], offset[quad]); }

fn store_quad(acc: vec4<i32>, channel: Channel, m: u32, quad: u32) {
  let scaled = round(vec4<f32>(acc - channel.correction) * channel.multiplier);
  let joined = (unpack4xI8(residual[m * params.quads + quad]) - params.residual_zero) * params.residual_multiplier;
  let v = vec4<i32>(clamp(scaled, vec4<f32>(-T_LIMIT), vec4<f32>(T_LIMIT))) + channel.offset + joined;
  y[m * params.quads + quad] = finish(v);
}
