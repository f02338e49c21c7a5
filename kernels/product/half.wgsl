fn high_half(v: vec4<i32>) -> vec4<i32> { return v >> vec4<u32>(8u); }

fn low_half(v: vec4<i32>) -> vec4<i32> { return (v & vec4<i32>(255)) - 128; }

fn combine(x: x_Word) -> Word { return packed(half_of(x_lanes(x))); }

// --- the same while rows are loaded: the half of four elements, of which two lie in each word. Linked: HIGH ---

fn bytes_of(first: u32, second: u32) -> u32 {
  return ((first | (first >> 8u)) & 0xffffu) | ((second | (second >> 8u)) << 16u);
}

fn half_word(v: vec2<u32>) -> u32 {
  if (HIGH == 1u) { return bytes_of((v.x >> 8u) & 0xff00ffu, (v.y >> 8u) & 0xff00ffu); }
  return bytes_of(v.x & 0xff00ffu, v.y & 0xff00ffu) ^ 0x80808080u;
}

fn half_at(p: vec4<u32>) -> u32 { return half_word(x_word(p)); }

// Of gemm_rows' whole_vector and vector_of_words.
fn whole_halves(first: u32, k: u32) -> vec4<u32> {
  let at = first / 2u + 2u * k;
  let a = x[at];
  let b = x[at + 1u];
  return vec4<u32>(half_word(a.xy), half_word(a.zw), half_word(b.xy), half_word(b.zw));
}

fn halves_of_words(first: u32, k: u32) -> vec4<u32> {
  let at = first + 4u * k;
  return vec4<u32>(half_word(x[at]), half_word(x[at + 1u]), half_word(x[at + 2u]), half_word(x[at + 3u]));
}
