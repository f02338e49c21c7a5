// One thread looks up one word; operand and result share the packed dimension, so lanes stay in place.

fn entry(v: u32) -> u32 {
  let at = (v + 128u) & 0xffu;
  return (table[at / 4u] >> (at % 4u * 8u)) & 0xffu;
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
  let at = id.y * groups.x * 64u + id.x;
  if (at >= params.words) { return; }
  let p = y_coord(at);
  if (any(p >= params.y_dims)) {
    y[at] = 0u;
    return;
  }
  let word = x_word(p);
  y[at] = entry(word & 0xffu) | (entry((word >> 8u) & 0xffu) << 8u) |
          (entry((word >> 16u) & 0xffu) << 16u) | (entry(word >> 24u) << 24u);
}
