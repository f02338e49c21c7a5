// Four results in 2^-FRACTION output steps to a word of int8, rounded half to even and clamped.
fn finish(v: vec4<i32>) -> u32 {
  let half = vec4<i32>((1i << (FRACTION - 1u)) - 1i) + ((v >> vec4<u32>(FRACTION)) & vec4<i32>(1));
  return pack4xI8(clamp(((v + half) >> vec4<u32>(FRACTION)) + params.zero, vec4<i32>(params.lo), vec4<i32>(params.hi)));
}
