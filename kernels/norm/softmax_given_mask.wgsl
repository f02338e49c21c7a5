// A mask of bools that is computed, int8 of 0 and others: for words of rows in 4W, and for elements in any layout.
// Dimensions of extent 1 are read at 0.

// All bits of the elements of a word that take part; p is the word's first.
fn part_of(p: vec4<u32>) -> u32 {
  let word = mask_word(min(p, params.mask_dims - 1u));
  if (params.mask_dims.w == 1u) { return select(0u, 0xffffffffu, (word & 0xffu) != 0u); }
  let taken = ((word & 0x7f7f7f7fu) + 0x7f7f7f7fu) | word;
  return ((taken >> 7u) & 0x01010101u) * 255u;
}

fn takes_part(p: vec4<u32>) -> bool { return mask_at(min(p, params.mask_dims - 1u)) != 0; }
