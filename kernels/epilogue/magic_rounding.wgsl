// Rounding by additions (magic_rounding.py).

// The bits of 1.5 * 2^23, and of whole_quad's result for it.
const STEPS_BITS = 0x4b400000i;
const WHOLE_BITS = 0x52400300i;

// Four numbers of steps, each given as a float that is 1.5 * 2^23 larger. The bits of the result are the rounded
// integer plus WHOLE_BITS.
fn whole_quad(v: vec4<f32>) -> vec4<i32> { return bitcast<vec4<i32>>(v + vec4<f32>(206158430208.0)); }

// A word of four int8 values from whole_quad's results. WHOLE_BITS is subtracted from all bytes at once, so that no
// masks are needed.
fn packed_whole(v: vec4<i32>, zero: i32) -> u32 {
  let bits = bitcast<vec4<u32>>(v);
  let sum = (((((bits.w << 8u) + bits.z) << 8u) + bits.y) << 8u) + bits.x;
  return (sum + u32(zero + 128 - WHOLE_BITS) * 0x01010101u) ^ 0x80808080u;
}
