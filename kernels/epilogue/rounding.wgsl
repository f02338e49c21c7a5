// Four accumulators in 2^-FRACTION output steps. The limit is whole, so clamping before rounding is the same, and the
// rounding conversion is one instruction on some devices.
fn scaled_quad(acc: vec4<i32>, multiplier: vec4<f32>) -> vec4<i32> {
  return vec4<i32>(round(clamp(vec4<f32>(acc) * multiplier, vec4<f32>(-T_LIMIT), vec4<f32>(T_LIMIT))));
}

// Four numbers divided by 2^k, rounded half to even.
fn rte_quad(v: vec4<i32>, k: u32) -> vec4<i32> {
  let half = vec4<i32>((1i << (k - 1u)) - 1i) + ((v >> vec4<u32>(k)) & vec4<i32>(1));
  return (v + half) >> vec4<u32>(k);
}

// Four numbers of 2^-k output steps as int8 values.
fn int8_quad(v: vec4<i32>, k: u32, zero: i32, lo: i32, hi: i32) -> vec4<i32> {
  return clamp(rte_quad(v, k) + zero, vec4<i32>(lo), vec4<i32>(hi));
}
