// q8ta_add of the value and an addend; it lies where an int8 result would.
fn joined(v: vec4<i32>, m: u32, quad: u32) -> vec4<i32> {
  let other = (unpack4xI8(addend[m * params.quads + quad]) - params.addend_zero) * params.addend_multiplier;
  let sum = rte_quad((v - params.zero) * params.inner_multiplier + other, params.shift) + params.sum_zero;
  return clamp(sum, vec4<i32>(params.sum_lo), vec4<i32>(params.sum_hi));
}
