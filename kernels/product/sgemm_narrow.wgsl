// Rows of any length, element by element: neighbouring threads take neighbouring elements, so the columns of a quad are
// a quarter of a tile apart.
alias Item = f32;
const STRIDE = TILE_N;

// Four quads of rows at one k.
fn left_block(i: u32, tile: Tile, k: u32) -> mat4x4<f32> {
  let at = k + i % DEPTH;
  if (at >= params.depth) { return mat4x4<f32>(); }
  let m = (tile.row * TILE_M + i / DEPTH * 4u) * 4u;
  return mat4x4<f32>(
    left_quad(tile.left, m, at),
    left_quad(tile.left, m + 4u, at),
    left_quad(tile.left, m + 8u, at),
    left_quad(tile.left, m + 12u, at),
  );
}

fn left_quad(base: u32, m: u32, k: u32) -> vec4<f32> {
  let row = min(vec4<u32>(m, m + 1u, m + 2u, m + 3u), vec4<u32>(params.rows - 1u));
  let at = base + row * params.depth + k;
  return vec4<f32>(left_item(at.x), left_item(at.y), left_item(at.z), left_item(at.w));
}

// (k, quad of rows) of vector j of load i.
fn tile_position(i: u32, j: u32) -> vec2<u32> { return vec2<u32>(i % DEPTH, i / DEPTH * 4u + j); }

// The right operand as a matrix. Past the end of a row, elements of the next row are read, or the last one of the
// buffer.
fn right_quad(base: u32, k: u32, n: u32) -> vec4<f32> {
  let at = base + k * params.columns + n;
  let found = vec4<f32>(
    right_item(at), right_item(at + STRIDE), right_item(at + 2u * STRIDE), right_item(at + 3u * STRIDE),
  );
  return select(vec4<f32>(), found, k < params.depth);
}

fn store_quad(row: u32, n: u32, value: vec4<f32>) {
  for (var j = 0u; j < 4u; j++) {
    if (n + j * STRIDE < params.columns) { y[row + n + j * STRIDE] = value[j]; }
  }
}
