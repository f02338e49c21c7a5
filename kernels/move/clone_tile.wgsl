// Copies between 4W, in which four pixels of a channel are a word, and 4C, in which four channels of a pixel are. A
// workgroup takes a tile of pixels x channel quads through workgroup memory, so that both sides read and write runs. A
// thread moves blocks of four pixels of a quad. Rows of 4W are padded to params.row pixels, of which params.width exist.

const THREADS = 256u;
const TILE = 2048u;
const BLOCKS = TILE / THREADS / 4u;
const NOWHERE = 0xffffffffu;

// The index of word (pixel, quad) in the tile. Rows of 32 words are permuted, so that threads along either dimension
// use all memory banks.
var<workgroup> tile: array<u32, TILE>;

fn tile_index(pixel: u32, quad: u32) -> u32 {
  let at = (pixel << params.quad_bits) | quad;
  return at ^ ((at >> params.swizzle) & 31u);
}

struct Tile { n: u32, pixel: u32, quad: u32 }

fn tile_of(group: u32) -> Tile {
  let rest = group / params.quad_tiles;
  let n = rest / params.pixel_tiles;
  return Tile(
    n, (rest - n * params.pixel_tiles) * (TILE >> params.quad_bits),
    (group - rest * params.quad_tiles) << params.quad_bits);
}

// A thread's block i: four pixels, by their index among such groups of the tile, and a quad.
struct Block { unit: u32, quad: u32 }

fn block_of(thread: u32, i: u32) -> Block {
  let at = thread + i * THREADS;
  let units = (TILE / 4u) >> params.quad_bits;
  return Block(at & (units - 1u), at / units);
}

// The index in the 4C tensor of a quad of a pixel, which is counted in padded rows; NOWHERE outside the image.
fn word_at(n: u32, padded: u32, quad: u32) -> u32 {
  let line = padded / params.row;
  let column = padded - line * params.row;
  let inside = padded < params.padded && quad < params.quads && column < params.width;
  return select(NOWHERE, (n * params.pixels + line * params.width + column) * params.quads + quad, inside);
}

// The index in the 4W tensor of a channel's word.
fn word_of_unit(n: u32, channel: u32, pixel: u32, unit: u32) -> u32 {
  return ((n * params.channels + channel) * params.padded + pixel) / 4u + unit;
}

// Byte i of word j becomes byte j of word i.
fn transposed(w: vec4<u32>) -> vec4<u32> {
  let low = (w.xz & vec2<u32>(0x00ff00ffu)) | ((w.yw & vec2<u32>(0x00ff00ffu)) << vec2<u32>(8u));
  let high = ((w.xz >> vec2<u32>(8u)) & vec2<u32>(0x00ff00ffu)) | (w.yw & vec2<u32>(0xff00ff00u));
  return vec4<u32>(
    (low.x & 0xffffu) | (low.y << 16u), (high.x & 0xffffu) | (high.y << 16u),
    (low.x >> 16u) | (low.y & 0xffff0000u), (high.x >> 16u) | (high.y & 0xffff0000u));
}
