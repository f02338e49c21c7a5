// Rows of whole vectors.
alias Item = vec4<f32>;
const STRIDE = 1u;

// Four rows at four indices of k, transposed.
fn left_block(i: u32, tile: Tile, k: u32) -> mat4x4<f32> {
  let m = (tile.row * TILE_M + i / (DEPTH / 4u)) * 4u;
  let at = k + i % (DEPTH / 4u) * 4u;
  return transpose(mat4x4<f32>(
    left_row(tile.left, m, at), left_row(tile.left, m + 1u, at), left_row(tile.left, m + 2u, at),
    left_row(tile.left, m + 3u, at),
  ));
}

fn left_row(base: u32, m: u32, k: u32) -> vec4<f32> {
  let found = left_item((base + min(m, params.rows - 1u) * params.depth + k) / 4u);
  return select(vec4<f32>(), found, k < params.depth);
}

// (k, quad of rows) of vector j of load i.
fn tile_position(i: u32, j: u32) -> vec2<u32> { return vec2<u32>(i % (DEPTH / 4u) * 4u + j, i / (DEPTH / 4u)); }

fn right_quad(base: u32, k: u32, n: u32) -> vec4<f32> {
  let found = right_item((base + k * params.columns + n) / 4u);
  return select(vec4<f32>(), found, k < params.depth);
}

fn store_quad(row: u32, n: u32, value: vec4<f32>) { y[(row + n) / 4u] = value; }
