// Addresses of the packed int8 layouts and of row-major floats.
// p and d are (n, c, h, w): a position and the tensor's extents. index_X: the word that holds p.
// coord_X: the position of lane 0 of a word; it lies outside the tensor for words of padding.

fn quads(extent: u32) -> u32 { return (extent + 3u) / 4u; }

fn index_WIDTH_PACKED(p: vec4<u32>, d: vec4<u32>) -> u32 {
  return ((p.x * d.y + p.y) * d.z + p.z) * d.w + p.w;
}

fn index_4W(p: vec4<u32>, d: vec4<u32>) -> u32 {
  return ((p.x * d.y + p.y) * d.z + p.z) * quads(d.w) + p.w / 4u;
}

fn index_4C(p: vec4<u32>, d: vec4<u32>) -> u32 {
  return ((p.x * d.z + p.z) * d.w + p.w) * quads(d.y) + p.y / 4u;
}

fn index_4C1W(p: vec4<u32>, d: vec4<u32>) -> u32 {
  return ((p.x * d.z + p.z) * quads(d.y) + p.y / 4u) * d.w + p.w;
}

fn index_4W4C(p: vec4<u32>, d: vec4<u32>) -> u32 {
  return (((p.x * d.z + p.z) * quads(d.w) + p.w / 4u) * quads(d.y) + p.y / 4u) * 4u + p.w % 4u;
}

fn index_4H4W(p: vec4<u32>, d: vec4<u32>) -> u32 {
  return (((p.x * d.y + p.y) * quads(d.z) + p.z / 4u) * quads(d.w) + p.w / 4u) * 4u + p.z % 4u;
}

fn coord_WIDTH_PACKED(word: u32, d: vec4<u32>) -> vec4<u32> {
  let r = word / d.w;
  let s = r / d.z;
  return vec4<u32>(s / d.y, s % d.y, r % d.z, word % d.w);
}

fn coord_4W(word: u32, d: vec4<u32>) -> vec4<u32> {
  let w4 = quads(d.w);
  let r = word / w4;
  let s = r / d.z;
  return vec4<u32>(s / d.y, s % d.y, r % d.z, word % w4 * 4u);
}

fn coord_4C(word: u32, d: vec4<u32>) -> vec4<u32> {
  let c4 = quads(d.y);
  let r = word / c4;
  let s = r / d.w;
  return vec4<u32>(s / d.z, word % c4 * 4u, s % d.z, r % d.w);
}

fn coord_4C1W(word: u32, d: vec4<u32>) -> vec4<u32> {
  let c4 = quads(d.y);
  let r = word / d.w;
  let s = r / c4;
  return vec4<u32>(s / d.z, r % c4 * 4u, s % d.z, word % d.w);
}

fn coord_4W4C(word: u32, d: vec4<u32>) -> vec4<u32> {
  let c4 = quads(d.y);
  let w4 = quads(d.w);
  let block = word / 4u;
  let r = block / c4;
  let s = r / w4;
  return vec4<u32>(s / d.z, block % c4 * 4u, s % d.z, r % w4 * 4u + word % 4u);
}

fn coord_4H4W(word: u32, d: vec4<u32>) -> vec4<u32> {
  let h4 = quads(d.z);
  let w4 = quads(d.w);
  let block = word / 4u;
  let r = block / w4;
  let s = r / h4;
  return vec4<u32>(s / d.y, s % d.y, r % h4 * 4u + word % 4u, block % w4 * 4u);
}
