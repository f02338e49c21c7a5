// Four floats to int8, as lanes or as a word.
fn int8_of(v: vec4<f32>) -> vec4<i32> {
  let steps = vec4<i32>(round(clamp(v * params.inverse_scale, vec4<f32>(-1024.0), vec4<f32>(1024.0))));
  // NaN is told by its bits: a driver may assume that comparisons never see one.
  let nan = (bitcast<vec4<u32>>(v) & vec4<u32>(0x7fffffffu)) > vec4<u32>(0x7f800000u);
  let q = select(steps, vec4<i32>(0), nan) + params.int8_zero;
  return clamp(q, vec4<i32>(params.int8_lo), vec4<i32>(params.int8_hi));
}

fn quantized(v: vec4<f32>) -> u32 { return pack4xI8(int8_of(v)); }
