// Matrix product of float32, tiled twice: y[m, n] = start(n) + sum over k of left[m, k] * right[k, n], for each batch.
// A workgroup makes TILE_M x TILE_N quads of rows and columns, a thread ROWS x QUADS of them in registers. A step brings
// DEPTH of k to workgroup memory in blocks of 4 x 4, while the next step's are already under way; blocks of the left side
// are turned, so that both sides are read as vectors along the result. What lies past the end of k is 0 on both sides;
// rows and columns past the result's repeat others and are not stored. Linked: the constants in capitals; left_quad,
// right_quad and store (sgemm_narrow, sgemm_wide); left_of, right_of and start (an operator's own).

const THREADS = THREADS_M * THREADS_N;
const TILE_M = THREADS_M * ROWS;
const TILE_N = THREADS_N * QUADS;
const DEPTH = 16u;
const BLOCKS = DEPTH / 4u;
const LEFT_BLOCKS = TILE_M * BLOCKS;
const LOADS = (TILE_M + TILE_N) * BLOCKS / THREADS;

var<workgroup> left_tile: array<array<vec4<f32>, TILE_M>, DEPTH>;
var<workgroup> right_tile: array<array<vec4<f32>, TILE_N>, DEPTH>;

// Quads of rows are mixed so that turned blocks, stored by neighbours along k, do not meet in one memory bank.
fn mixed(m: u32, block: u32) -> u32 { return m ^ (block * 2u); }

fn load(i: u32, left: u32, right: u32, first: vec2<u32>, k: u32) -> mat4x4<f32> {
  if (i < LEFT_BLOCKS) {
    let m = (first.x + i / BLOCKS) * 4u;
    let at = k + i % BLOCKS * 4u;
    return transpose(mat4x4<f32>(
      left_quad(left, m, at), left_quad(left, m + 1u, at), left_quad(left, m + 2u, at), left_quad(left, m + 3u, at),
    ));
  }
  let n = (first.y + (i - LEFT_BLOCKS) % TILE_N) * 4u;
  let at = k + (i - LEFT_BLOCKS) / TILE_N * 4u;
  return mat4x4<f32>(
    right_quad(right, at, n), right_quad(right, at + 1u, n), right_quad(right, at + 2u, n), right_quad(right, at + 3u, n),
  );
}

fn keep(i: u32, block: mat4x4<f32>) {
  if (i < LEFT_BLOCKS) {
    let b = i % BLOCKS;
    let m = mixed(i / BLOCKS, b);
    left_tile[b * 4u][m] = block[0];
    left_tile[b * 4u + 1u][m] = block[1];
    left_tile[b * 4u + 2u][m] = block[2];
    left_tile[b * 4u + 3u][m] = block[3];
  } else {
    let b = (i - LEFT_BLOCKS) / TILE_N;
    let n = (i - LEFT_BLOCKS) % TILE_N;
    right_tile[b * 4u][n] = block[0];
    right_tile[b * 4u + 1u][n] = block[1];
    right_tile[b * 4u + 2u][n] = block[2];
    right_tile[b * 4u + 3u][n] = block[3];
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
  let first = vec2<u32>(index / column_tiles % row_tiles * TILE_M, index % column_tiles * TILE_N);
  let left = left_of(batch);
  let right = right_of(batch);
  let tm = local / THREADS_N;
  let tn = local % THREADS_N;

  var acc: array<vec4<f32>, 4u * ROWS * QUADS>;
  for (var j = 0u; j < QUADS; j++) {
    let value = start((first.y + j * THREADS_N + tn) * 4u);
    for (var i = 0u; i < 4u * ROWS; i++) { acc[i * QUADS + j] = value; }
  }
  var next: array<mat4x4<f32>, LOADS>;
  for (var i = 0u; i < LOADS; i++) { next[i] = load(local + i * THREADS, left, right, first, 0u); }
  for (var k = 0u; k < params.depth; k += DEPTH) {
    for (var i = 0u; i < LOADS; i++) { keep(local + i * THREADS, next[i]); }
    workgroupBarrier();
    if (k + DEPTH < params.depth) {
      for (var i = 0u; i < LOADS; i++) { next[i] = load(local + i * THREADS, left, right, first, k + DEPTH); }
    }
    for (var s = 0u; s < DEPTH; s++) {
      var b: array<vec4<f32>, QUADS>;
      for (var j = 0u; j < QUADS; j++) { b[j] = right_tile[s][j * THREADS_N + tn]; }
      for (var i = 0u; i < ROWS; i++) {
        let a = left_tile[s][mixed(i * THREADS_M + tm, s / 4u)];
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
    let m = (first.x + i / 4u * THREADS_M + tm) * 4u + i % 4u;
    if (m >= params.rows) { continue; }
    for (var j = 0u; j < QUADS; j++) {
      let n = (first.y + j * THREADS_N + tn) * 4u;
      if (n < params.columns) { store((batch * params.rows + m) * params.columns, n, acc[i * QUADS + j]); }
    }
  }
}
