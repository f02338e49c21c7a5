// As quad_requantize, with a residual that joins before rounding; it lies in the result's layout.
fn quad_value(acc: vec4<i32>, channel: Channel, m: u32, quad: u32) -> vec4<i32> {
  let joined = (unpack4xI8(residual[m * params.quads + quad]) - params.residual_zero) * params.residual_multiplier;
  let scaled = scaled_quad(acc, channel.multiplier);
  return finish(scaled + channel.offset + joined);
}
