// The dot product of two words of four int8: by the packed instruction, or by multiplication where that is faster.
fn dot4_packed(a: u32, b: u32) -> i32 { return dot4I8Packed(a, b); }

fn dot4_emulated(a: u32, b: u32) -> i32 {
  let v = unpack4xI8(a) * unpack4xI8(b);
  return v.x + v.y + v.z + v.w;
}

// Whether dot products are emulated: EMULATES is one of the two (q8ta_wgpu/program/link.py).
const NEVER = false;
const ALWAYS = true;

// The dot products of a word with each of four words.
fn dot_words(word: u32, w: vec4<u32>) -> vec4<i32> {
  return vec4<i32>(dot4(word, w.x), dot4(word, w.y), dot4(word, w.z), dot4(word, w.w));
}
