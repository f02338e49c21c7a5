// A table of int8 entries: four lookups for each word.

fn entry(v: u32) -> u32 { return (table[v / 4u] >> (v % 4u * 8u)) & 0xffu; }

fn combine(x: u32) -> u32 {
  let at = x ^ 0x80808080u;
  return entry(at & 0xffu) | (entry((at >> 8u) & 0xffu) << 8u) |
         (entry((at >> 16u) & 0xffu) << 16u) | (entry(at >> 24u) << 24u);
}
