// The operand `mask`: bools in int8, where any number but 0 is true (kernels/lib/mask.py). Dimensions of extent 1 are
// broadcast, and the first one repeats. Linked instead of no_mask.wgsl where a call has a mask.

fn mask_coord(p: vec4<u32>) -> vec4<u32> {
  return vec4<u32>(p.x % params.mask_dims.x, min(p.yzw, params.mask_dims.yzw - 1u));
}

// A word with all bits set in the lanes where a mask in 4W is true; p are the coordinates of the word's first element.
fn unmasked_bits(p: vec4<u32>) -> u32 {
  let word = mask_word(mask_coord(p));
  if (params.mask_dims.w == 1u) { return select(0u, 0xffffffffu, (word & 0xffu) != 0u); }
  let set_lanes = ((word & 0x7f7f7f7fu) + 0x7f7f7f7fu) | word;
  return ((set_lanes >> 7u) & 0x01010101u) * 255u;
}

fn is_unmasked(p: vec4<u32>) -> bool { return mask_at(mask_coord(p)) != 0; }
