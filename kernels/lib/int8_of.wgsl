// Four floats to int8, as lanes. The range of the result is params.steps_lo..steps_hi around the zero point.
fn int8_of(v: vec4<f32>) -> vec4<i32> {
  // NaN is recognized by its bits: a compiler may assume that there is none.
  let nan = (bitcast<vec4<u32>>(v) & vec4<u32>(0x7fffffffu)) > vec4<u32>(0x7f800000u);
  let steps = select(v, vec4<f32>(0.0), nan) * params.inverse_scale;
  return vec4<i32>(round(clamp(steps, vec4<f32>(params.steps_lo), vec4<f32>(params.steps_hi)))) + params.int8_zero;
}
