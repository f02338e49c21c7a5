// Four accumulators in 2^-FRACTION output steps. The limit is whole, so clamping before rounding is the same, and the
// rounding conversion is one instruction on some devices.
fn scaled_quad(acc: vec4<i32>, multiplier: vec4<f32>) -> vec4<i32> {
  return vec4<i32>(round(clamp(vec4<f32>(acc) * multiplier, vec4<f32>(-T_LIMIT), vec4<f32>(T_LIMIT))));
}

// Four results in 2^-FRACTION output steps to a word of int8, rounded half to even and clamped.
fn finish(v: vec4<i32>) -> u32 {
  let half = vec4<i32>((1i << (FRACTION - 1u)) - 1i) + ((v >> vec4<u32>(FRACTION)) & vec4<i32>(1));
  return pack4xI8(clamp(((v + half) >> vec4<u32>(FRACTION)) + params.zero, vec4<i32>(params.lo), vec4<i32>(params.hi)));
}
