// q8ta_add of the int8 value and an addend.
fn joined(v: vec4<i32>, m: u32, quad: u32) -> vec4<i32> {
  let other = (unpack4xI8(addend_quad(m, quad)) - params.addend_zero) * params.addend_multiplier;
  let sum = (v - params.zero) * params.inner_multiplier + other;
  return int8_quad(sum, params.shift, params.sum_zero, params.sum_lo, params.sum_hi);
}
