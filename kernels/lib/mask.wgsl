// Which elements of rows take part, by the operand `mask`: bools in int8, 0 and others (kernels/lib/mask.py). Dimensions of
// extent 1 are read at 0, and it repeats along the first. Linked in place of no_mask.wgsl where a call has a mask.

fn mask_place(p: vec4<u32>) -> vec4<u32> {
  return vec4<u32>(p.x % params.mask_dims.x, min(p.yzw, params.mask_dims.yzw - 1u));
}

// All bits of the elements of a word that take part, of a mask in 4W; p is the word's first.
fn part_of(p: vec4<u32>) -> u32 {
  let word = mask_word(mask_place(p));
  if (params.mask_dims.w == 1u) { return select(0u, 0xffffffffu, (word & 0xffu) != 0u); }
  let taken = ((word & 0x7f7f7f7fu) + 0x7f7f7f7fu) | word;
  return ((taken >> 7u) & 0x01010101u) * 255u;
}

fn takes_part(p: vec4<u32>) -> bool { return mask_at(mask_place(p)) != 0; }
