// A constant mask, packed with all bits of an element 1 or 0 (kernels/norm/softmax.py).

// All bits of the elements of a word of a line that take part; dimensions of extent 1 are read at 0, and a mask repeats
// along the first. p is the word's first.
fn part_of(p: vec4<u32>) -> u32 {
  if (MASKED == 0u) { return 0xffffffffu; }
  let at = vec4<u32>(p.x % params.mask_dims.x, min(p.yzw, params.mask_dims.yzw - 1u));
  let line = (at.x * params.mask_dims.y + at.y) * params.mask_dims.z + at.z;
  return mask[line * quads(params.mask_dims.w) + at.w / 4u];
}

fn takes_part(p: vec4<u32>) -> bool { return lane(part_of(p), min(p.w, params.mask_dims.w - 1u) % 4u) != 0; }
