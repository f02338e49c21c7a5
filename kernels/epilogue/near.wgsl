// Rounding by additions: near.py says how.

// The bits of 1.5 * 2^23, and of what whole_quad makes of it.
const STEPS_BITS = 0x4b400000i;
const WHOLE_BITS = 0x52400300i;

// Four numbers of steps, each as a float that is 1.5 * 2^23 more: bits that are WHOLE_BITS more than the whole number.
fn whole_quad(v: vec4<f32>) -> vec4<i32> { return bitcast<vec4<i32>>(v + vec4<f32>(206158430208.0)); }

// What whole_quad makes, as int8 with a zero point, in a word. Added up with what makes each a byte, they need no masks.
fn packed_whole(v: vec4<i32>, zero: i32) -> u32 {
  let bits = bitcast<vec4<u32>>(v);
  let sum = (((((bits.w << 8u) + bits.z) << 8u) + bits.y) << 8u) + bits.x;
  return (sum + u32(zero + 128 - WHOLE_BITS) * 0x01010101u) ^ 0x80808080u;
}
