// Four lookups a word.

fn entry(v: u32) -> u32 {
  let at = (v + 128u) & 0xffu;
  return (table[at / 4u] >> (at % 4u * 8u)) & 0xffu;
}

fn apply_word(at: u32) -> u32 {
  let word = x_word_of(at);
  return entry(word & 0xffu) | (entry((word >> 8u) & 0xffu) << 8u) |
         (entry((word >> 16u) & 0xffu) << 16u) | (entry(word >> 24u) << 24u);
}
