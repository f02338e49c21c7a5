// Packed dot products for browsers without them.

/** WGSL's functions on four int8 in a word, for browsers that lack them. */
const EMULATED = {
  unpack4xI8: `fn unpack4xI8_(v: u32) -> vec4<i32> {
  return vec4<i32>(bitcast<vec4<i32>>(vec4<u32>(v) << vec4<u32>(24u, 16u, 8u, 0u))) >> vec4<u32>(24u);
}`,
  pack4xI8: `fn pack4xI8_(v: vec4<i32>) -> u32 {
  let b = bitcast<vec4<u32>>(v) & vec4<u32>(255u);
  return b.x | (b.y << 8u) | (b.z << 16u) | (b.w << 24u);
}`,
  dot4I8Packed: `fn dot4I8Packed_(a: u32, b: u32) -> i32 {
  let v = unpack4xI8(a) * unpack4xI8(b);
  return v.x + v.y + v.z + v.w;
}`,
};

export function emulated(text) {
  const names = Object.keys(EMULATED).join("|");
  const whole = `${text}\n${Object.values(EMULATED).join("\n")}`;
  return whole.replace(new RegExp(`\\b(${names})\\b`, "g"), "$1_");
}
