// Weights of 4 bits for gemm_units, by the names of unit_weights_8.
// Uses weights_4.

// A load is the vectors k and k + 1 of a channel, the first in the high bits of each byte, and the factor of
// their group. A weight is w = factor * n, of 11 bits. Units multiply it in two parts, w = 16 * high + low, with high in
// -64..63 and low in 0..15.
struct UnitWeights { bits: vec4<u32>, factor: i32 }

fn unit_weights(at: u32, channel: u32, k: u32) -> UnitWeights {
  let factors = factor_word(channel / 4u, k);
  return UnitWeights(weight[params.factors + at], bitcast<i32>(factors << (24u - channel % 4u * 8u)) >> 24u);
}

// A subgroup's columns are the high parts of its channels, then their low parts.
fn unit_column(channel: u32, part: u32) -> u32 {
  return channel / OWN_N * (OWN_N * PARTS) + part * OWN_N + channel % OWN_N;
}

// One part of 16 weights. Two of them are computed in one word, of 16 bits each: n + 8 times the factor, plus
// 2048 - 8 * factor, is w + 2048, which is positive.
fn unit_vector(w: UnitWeights, part: u32, v: u32) -> vec4<u32> {
  let n = (w.bits >> vec4<u32>(4u - 4u * v)) ^ vec4<u32>(0x08080808u);
  let factor = vec4<u32>(bitcast<u32>(w.factor));
  let rest = vec4<u32>(bitcast<u32>(2048 - 8 * w.factor) * 0x10001u);
  let even = (n & vec4<u32>(0x000f000fu)) * factor + rest;
  let odd = ((n >> vec4<u32>(8u)) & vec4<u32>(0x000f000fu)) * factor + rest;
  let low = (even & vec4<u32>(0x000f000fu)) | ((odd & vec4<u32>(0x000f000fu)) << vec4<u32>(8u));
  let high = ((even >> vec4<u32>(4u)) & vec4<u32>(0x00ff00ffu)) | ((odd << vec4<u32>(4u)) & vec4<u32>(0xff00ff00u));
  return select(high ^ vec4<u32>(0x80808080u), low, part == 1u);
}

fn unit_sum(at: u32) -> vec4<i32> {
  return (bitcast<vec4<i32>>(staged[at]) << vec4<u32>(4u)) + bitcast<vec4<i32>>(staged[at + QUADS]);
}
