// As quad_requantize, then q8ta_add of that int8 value and an addend; it lies where an int8 result would.
fn quad_value(acc: vec4<i32>, channel: Channel, m: u32, quad: u32) -> vec4<i32> {
  let inner = (finish(scaled_quad(acc, channel.multiplier) + channel.offset) - params.zero) * params.inner_multiplier;
  let joined = (unpack4xI8(addend[m * params.quads + quad]) - params.addend_zero) * params.addend_multiplier;
  let sum = rte_quad(inner + joined, params.shift) + params.sum_zero;
  return clamp(sum, vec4<i32>(params.sum_lo), vec4<i32>(params.sum_hi));
}
