// A residual joins before rounding.
fn unrounded(v: vec4<i32>, m: u32, quad: u32) -> vec4<i32> {
  return v + (unpack4xI8(residual_quad(m, quad)) - params.residual_zero) * params.residual_multiplier;
}
