// The integer arithmetic of the contract (q8ta_wgpu/ir/arithmetic.py defines it in numpy).

const FRACTION = 14u;
const T_LIMIT = 1073741824.0;

// v / 2^k rounded half to even, k >= 1.
fn rte(v: i32, k: u32) -> i32 {
  return (v + ((1i << (k - 1u)) - 1i) + ((v >> k) & 1i)) >> k;
}

// A float that may be anything but NaN, rounded half to even into [-limit, limit].
fn round_within(v: f32, limit: f32) -> i32 {
  return i32(clamp(round(v), -limit, limit));
}

// The accumulator of a convolution or linear in 2^-FRACTION output steps.
fn scaled_accumulator(acc: i32, multiplier: f32) -> i32 {
  return round_within(f32(acc) * multiplier, T_LIMIT);
}

fn is_nan(v: f32) -> bool {
  return (bitcast<u32>(v) & 0x7fffffffu) > 0x7f800000u;
}

// Four copies of an int8 in a word.
fn splat(v: i32) -> u32 {
  return (u32(v) & 0xffu) * 0x01010101u;
}

fn lane(word: u32, index: u32) -> i32 {
  return extractBits(bitcast<i32>(word), index * 8u, 8u);
}

// Words, or blocks of four, that an extent takes.
fn quads(extent: u32) -> u32 {
  return (extent + 3u) / 4u;
}
