// Matrix product of float32, tiled twice: y[m, n] = start(m, n) + sum over k of left[m, k] * right[k, n], for each
// batch.
// A workgroup makes TILE_M x TILE_N quads of rows and columns. A thread makes ROWS x QUADS of them in registers. A step
// loads DEPTH indices of k to workgroup memory, in blocks of 4 x 4 elements; the loads of the next step are issued
// before the products of this one. Both operands are stored there as vectors along the result's dimension.
// Past the end of k both operands count as 0. Rows and columns past those of the result repeat others and are not
// stored.
// Linked: the constants in capitals; STRIDE, the distance between the columns of a quad, left_block, tile_position,
// right_quad and store_quad (sgemm_narrow, sgemm_wide); left_of, right_of and start (the operator's file).

const THREADS = THREADS_M * THREADS_N;
const TILE_M = THREADS_M * ROWS;
const TILE_N = THREADS_N * QUADS;
const DEPTH = 16u;
const LEFT_LOADS = TILE_M * DEPTH / 4u;
const LOADS = (TILE_M + TILE_N) * DEPTH / 4u / THREADS;

var<workgroup> left_tile: array<array<vec4<f32>, TILE_M>, DEPTH>;
var<workgroup> right_tile: array<array<vec4<f32>, TILE_N>, DEPTH>;

// Quads of rows are swizzled. Neighbouring threads store at eight indices of k, or at four indices that are four apart,
// and the swizzle gives each of them another memory bank.
fn swizzled(m: u32, k: u32) -> u32 { return m ^ (k / 4u * 2u) ^ (k % 2u) ^ (k / 2u % 2u * 4u); }

// The first column of a quad of a tile.
fn column_of(tile: u32, quad: u32) -> u32 { return tile * TILE_N * 4u + quad * select(1u, 4u, STRIDE == 1u); }

struct Tile { row: u32, column: u32, left: u32, right: u32 }

fn load(i: u32, tile: Tile, k: u32) -> mat4x4<f32> {
  if (i < LEFT_LOADS) { return left_block(i, tile, k); }
  let n = column_of(tile.column, (i - LEFT_LOADS) % TILE_N);
  let at = k + (i - LEFT_LOADS) / TILE_N * 4u;
  return mat4x4<f32>(
    right_quad(tile.right, at, n),
    right_quad(tile.right, at + 1u, n),
    right_quad(tile.right, at + 2u, n),
    right_quad(tile.right, at + 3u, n),
  );
}

fn stage(i: u32, block: mat4x4<f32>) {
  for (var j = 0u; j < 4u; j++) {
    if (i < LEFT_LOADS) {
      let at = tile_position(i, j);
      left_tile[at.x][swizzled(at.y, at.x)] = block[j];
    } else {
      right_tile[(i - LEFT_LOADS) / TILE_N * 4u + j][(i - LEFT_LOADS) % TILE_N] = block[j];
    }
  }
}

@compute @workgroup_size(THREADS)
fn main(@builtin(local_invocation_index) local: u32,
        @builtin(workgroup_id) group: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>) {
  let column_tiles = (params.columns + TILE_N * 4u - 1u) / (TILE_N * 4u);
  let row_tiles = (params.rows + TILE_M * 4u - 1u) / (TILE_M * 4u);
  let index = group.y * groups.x + group.x;
  let batch = index / (row_tiles * column_tiles);
  if (batch >= params.batches) { return; }
  let tile = Tile(index / column_tiles % row_tiles, index % column_tiles, left_of(batch), right_of(batch));
  let tm = local / THREADS_N;
  let tn = local % THREADS_N;

  var acc: array<vec4<f32>, 4u * ROWS * QUADS>;
  for (var i = 0u; i < 4u * ROWS; i++) {
    let m = min((tile.row * TILE_M + i / 4u * THREADS_M + tm) * 4u + i % 4u, params.rows - 1u);
    for (var j = 0u; j < QUADS; j++) {
      acc[i * QUADS + j] = start(batch, m, column_of(tile.column, j * THREADS_N + tn));
    }
  }
  var next: array<mat4x4<f32>, LOADS>;
  for (var i = 0u; i < LOADS; i++) { next[i] = load(local + i * THREADS, tile, 0u); }
  for (var k = 0u; k < params.depth; k += DEPTH) {
    for (var i = 0u; i < LOADS; i++) { stage(local + i * THREADS, next[i]); }
    workgroupBarrier();
    if (k + DEPTH < params.depth) {
      for (var i = 0u; i < LOADS; i++) { next[i] = load(local + i * THREADS, tile, k + DEPTH); }
    }
    for (var s = 0u; s < DEPTH; s++) {
      var b: array<vec4<f32>, QUADS>;
      for (var j = 0u; j < QUADS; j++) { b[j] = right_tile[s][j * THREADS_N + tn]; }
      for (var i = 0u; i < ROWS; i++) {
        let a = left_tile[s][swizzled(i * THREADS_M + tm, s)];
        for (var j = 0u; j < QUADS; j++) {
          acc[i * 4u * QUADS + j] += a.x * b[j];
          acc[(i * 4u + 1u) * QUADS + j] += a.y * b[j];
          acc[(i * 4u + 2u) * QUADS + j] += a.z * b[j];
          acc[(i * 4u + 3u) * QUADS + j] += a.w * b[j];
        }
      }
    }
    workgroupBarrier();
  }

  for (var i = 0u; i < 4u * ROWS; i++) {
    let m = (tile.row * TILE_M + i / 4u * THREADS_M + tm) * 4u + i % 4u;
    if (m >= params.rows) { continue; }
    for (var j = 0u; j < QUADS; j++) {
      let n = column_of(tile.column, j * THREADS_N + tn);
      if (n < params.columns) { store_quad((batch * params.rows + m) * params.columns, n, acc[i * QUADS + j]); }
    }
  }
}
