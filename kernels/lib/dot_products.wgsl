// Dot products of words of four int8. Open: dot4, by dot_instruction or dot_emulated.

// Those of a word with each of four words.
fn dot_words(word: u32, w: vec4<u32>) -> vec4<i32> {
  return vec4<i32>(dot4(word, w.x), dot4(word, w.y), dot4(word, w.z), dot4(word, w.w));
}

// The sums are in the order in which a packed dot product with an accumulator computes them.
fn dot_quad(acc: vec4<i32>, a: vec4<u32>, b0: vec4<u32>, b1: vec4<u32>, b2: vec4<u32>, b3: vec4<u32>) -> vec4<i32> {
  var sum = acc;
  sum += vec4<i32>(dot4(a.x, b0.x), dot4(a.x, b1.x), dot4(a.x, b2.x), dot4(a.x, b3.x));
  sum += vec4<i32>(dot4(a.y, b0.y), dot4(a.y, b1.y), dot4(a.y, b2.y), dot4(a.y, b3.y));
  sum += vec4<i32>(dot4(a.z, b0.z), dot4(a.z, b1.z), dot4(a.z, b2.z), dot4(a.z, b3.z));
  sum += vec4<i32>(dot4(a.w, b0.w), dot4(a.w, b1.w), dot4(a.w, b2.w), dot4(a.w, b3.w));
  return sum;
}
