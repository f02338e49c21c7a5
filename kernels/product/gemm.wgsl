// Matrix product of int8 rows of x with int8 weights: y[m, c] = sum over k of x[m, k] * w[c, k], tiled twice.
// A workgroup makes TILE_M rows x TILE_N channels. A thread makes ROWS rows x QUADS channel quads of them in registers.
// SPLIT groups of threads share k and add their sums at the end.
// k counts vectors of 16 int8. A step loads STEP of them to workgroup memory; the loads of the next step are issued
// before the products of this one.
// Weights are in order (column tile, k, column in tile), so that those of a step are contiguous. Column (4q + j) *
// THREADS_N + t of a tile is channel j of quad q * THREADS_N + t.
// Rows may be divided into phases: blocks of whole tiles that have their own weights, start values and length of k.
// Open:
//   THREADS_M, THREADS_N, ROWS, QUADS, STEP, SPLIT, HALVES: the tile
//   Row: gemm_rows, gemm_window, gemm_window_image, gemm_window_transposed, parts_window, parts_gated
//   RowVector: halves_int8, halves_int16
//   row_of(m: u32) -> Row: rows_in_order, rows_with_strides, gemm_window, gemm_window_image, gemm_window_transposed,
//     parts_window, parts_gated
//   k_offset_of(k: u32) -> KOffset, load_x(row: Row, k_offset: KOffset) -> RowVector: gemm_rows, window_vectors,
//     window_words, gemm_window_image, gemm_window_transposed, parts_window, parts_gated
//   phase_of(m: u32) -> u32, steps_of(phase: u32) -> u32, pixel_of(m: u32) -> u32: gemm_pixels, gemm_window_transposed
//   half_vector(v: RowVector, half: u32) -> vec4<u32>, start_half(quad: u32, half: u32) -> vec4<i32>,
//     acc_of(high: vec4<i32>, low: vec4<i32>) -> Acc, real_acc(acc: Acc) -> vec4<f32>: halves_int8, halves_int16
//   load_w(at: u32) -> vec4<u32>, weight_factor(quad: u32, k: u32) -> vec4<i32>, add_products(acc: vec4<i32>,
//     a: vec4<u32>, b0: vec4<u32>, b1: vec4<u32>, b2: vec4<u32>, b3: vec4<u32>, factor: vec4<i32>) -> vec4<i32>:
//     weights_8, weights_4
// Uses quad, stages.

// On GPUs it is fastest to read nothing where a tap is outside of the image.
const BRANCHES = true;
const THREADS = THREADS_M * THREADS_N;
const TILE_M = THREADS_M * ROWS;
const TILE_N = THREADS_N * QUADS * 4u;
// Rows of x in a tile, and for a thread. A row of int16 is two rows of the product, of its high and of its low halves,
// which are OWN rows apart.
const TILE_ROWS = TILE_M / HALVES;
const OWN = ROWS / HALVES;
const LOADS_X = STEP * TILE_ROWS / THREADS;
const LOADS_W = (STEP * TILE_N + THREADS - 1u) / THREADS;
const WHOLE_W = STEP * TILE_N % THREADS == 0u;
const DEPTH = select(STEP, max(STEP, THREADS_N * QUADS), SPLIT > 1u);

// The arrays are nested. With the loops unrolled, bounds checks of the outer indices are folded, and those of the inner
// indices are the same in every step, so that the inner loop has no checks. x_tile also holds the sums of a SPLIT.
var<workgroup> x_tile: array<array<array<vec4<u32>, THREADS_M>, ROWS>, SPLIT * DEPTH>;
var<workgroup> w_tile: array<array<array<vec4<u32>, THREADS_N>, QUADS * 4u>, SPLIT * STEP>;

// Rows are swizzled so that neither the stores along k nor the loads along m use one memory bank twice.
fn swizzled(m: u32, k: u32) -> u32 { return m ^ (k * (8u / STEP)); }

@compute @workgroup_size(THREADS * SPLIT)
fn main(@builtin(local_invocation_index) local: u32,
        @builtin(workgroup_id) group: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>) {
  let column_tiles = (params.quads + TILE_N / 4u - 1u) / (TILE_N / 4u);
  let index = group.y * groups.x + group.x;
  let first_m = index / column_tiles * TILE_ROWS;
  if (first_m >= params.rows) { return; }
  let column_tile = index % column_tiles;
  let phase = phase_of(first_m);
  let slice = select(local / THREADS, 0u, SPLIT == 1u);
  let t = local % THREADS;
  let tm = t / THREADS_N;
  let tn = t % THREADS_N;

  let k_lane = t % STEP;
  let m_lane = t / STEP;
  var rows: array<Row, LOADS_X>;
  for (var i = 0u; i < LOADS_X; i++) {
    rows[i] = row_of(min(first_m + m_lane + i * (THREADS / STEP), params.rows - 1u));
  }
  let steps = steps_of(phase);
  let depth = params.steps * SPLIT * STEP;
  var k = phase * depth + slice * steps * STEP;
  var w_at = ((phase * column_tiles + column_tile) * depth + slice * steps * STEP) * TILE_N + t;
  var next_x: array<RowVector, LOADS_X>;
  var next_w: array<vec4<u32>, LOADS_W>;
  let k_offset = k_offset_of(k + k_lane);
  for (var i = 0u; i < LOADS_X; i++) { next_x[i] = load_x(rows[i], k_offset); }
  for (var i = 0u; i < LOADS_W; i++) { next_w[i] = load_w(w_at + i * THREADS); }

  var acc: array<vec4<i32>, ROWS * QUADS>;
  if (slice == 0u) {
    for (var q = 0u; q < QUADS; q++) {
      let from_quad = phase * params.quads + column_tile * (TILE_N / 4u) + q * THREADS_N + tn;
      for (var h = 0u; h < HALVES; h++) {
        let start = start_half(from_quad, h);
        for (var i = 0u; i < OWN; i++) { acc[(h * OWN + i) * QUADS + q] = start; }
      }
    }
  }
  for (var step = 0u; step < steps; step++) {
    for (var i = 0u; i < LOADS_X; i++) {
      let m = m_lane + i * (THREADS / STEP);
      for (var h = 0u; h < HALVES; h++) {
        x_tile[slice * DEPTH + k_lane][h * OWN + m / THREADS_M][swizzled(m % THREADS_M, k_lane)] = half_vector(next_x[i], h);
      }
    }
    for (var i = 0u; i < LOADS_W; i++) {
      let at = t + i * THREADS;
      if (WHOLE_W || at < STEP * TILE_N) {
        w_tile[slice * STEP + at / TILE_N][at % TILE_N / THREADS_N][at % THREADS_N] = next_w[i];
      }
    }
    workgroupBarrier();
    if (step + 1u < steps) {
      k += STEP;
      w_at += STEP * TILE_N;
      let k_offset = k_offset_of(k + k_lane);
      for (var i = 0u; i < LOADS_X; i++) { next_x[i] = load_x(rows[i], k_offset); }
      for (var i = 0u; i < LOADS_W; i++) { next_w[i] = load_w(w_at + i * THREADS); }
    }
    if (EMULATES) {
      // A word at a time, and of its channels one after another, so that few unpacked bytes are in registers. The two
      // loops are one, which is too long for compilers to unroll.
      for (var word = 0u; word < STEP * 4u; word++) {
        let s = word / 4u;
        let part = word % 4u;
        var a: array<vec4<i32>, ROWS>;
        for (var i = 0u; i < ROWS; i++) { a[i] = unpack4xI8(x_tile[slice * DEPTH + s][i][swizzled(tm, s)][part]); }
        for (var q = 0u; q < QUADS; q++) {
          let factor = weight_factor(column_tile * (TILE_N / 4u) + q * THREADS_N + tn, (slice * steps + step) * STEP + s);
          for (var j = 0u; j < 4u; j++) {
            let b = unpack4xI8(w_tile[slice * STEP + s][q * 4u + j][tn][part]);
            for (var i = 0u; i < ROWS; i++) { acc[i * QUADS + q][j] += dot(a[i], b) * factor[j]; }
          }
        }
      }
    } else {
      for (var s = 0u; s < STEP; s++) {
        var a: array<vec4<u32>, ROWS>;
        for (var i = 0u; i < ROWS; i++) { a[i] = x_tile[slice * DEPTH + s][i][swizzled(tm, s)]; }
        for (var q = 0u; q < QUADS; q++) {
          let b0 = w_tile[slice * STEP + s][q * 4u][tn];
          let b1 = w_tile[slice * STEP + s][q * 4u + 1u][tn];
          let b2 = w_tile[slice * STEP + s][q * 4u + 2u][tn];
          let b3 = w_tile[slice * STEP + s][q * 4u + 3u][tn];
          let factor = weight_factor(column_tile * (TILE_N / 4u) + q * THREADS_N + tn, (slice * steps + step) * STEP + s);
          for (var i = 0u; i < ROWS; i++) {
            acc[i * QUADS + q] = add_products(acc[i * QUADS + q], a[i], b0, b1, b2, b3, factor);
          }
        }
      }
    }
    workgroupBarrier();
  }

  if (SPLIT == 1u) {
    var pixels: array<u32, OWN>;
    for (var i = 0u; i < OWN; i++) { pixels[i] = pixel_of(first_m + tm + i * THREADS_M); }
    // Two loops with small bodies, which compilers unroll: see kernels/epilogue/quad.wgsl. Past the last row or quad,
    // some word within bounds is read, and nothing is stored.
    for (var q = 0u; q < QUADS; q++) {
      let quad = column_tile * (TILE_N / 4u) + q * THREADS_N + tn;
      let channel = channel_quad(quad);
      for (var i = 0u; i < OWN; i++) {
        let sum = real_acc(acc_of(acc[i * QUADS + q], acc[((HALVES - 1u) * OWN + i) * QUADS + q]));
        acc[i * QUADS + q] = quad_value(sum, channel, residual_of(pixels[i], quad));
      }
    }
    for (var q = 0u; q < QUADS; q++) {
      let quad = column_tile * (TILE_N / 4u) + q * THREADS_N + tn;
      let offsets = quad_offsets(quad);
      for (var i = 0u; i < OWN; i++) {
        if (pixels[i] < params.rows && quad < params.quads) { store_value(acc[i * QUADS + q], pixels[i], quad, offsets); }
      }
    }
    return;
  }
  // The accumulators of all slices are written to workgroup memory. The slices share the work of adding and storing
  // them.
  for (var i = 0u; i < ROWS; i++) {
    for (var q = 0u; q < QUADS; q++) {
      x_tile[slice * DEPTH + q * THREADS_N + tn][i][tm] = bitcast<vec4<u32>>(acc[i * QUADS + q]);
    }
  }
  workgroupBarrier();
  for (var i = slice; i < OWN * QUADS; i += SPLIT) {
    let m = pixel_of(first_m + tm + i / QUADS * THREADS_M);
    let quad = column_tile * (TILE_N / 4u) + i % QUADS * THREADS_N + tn;
    if (m >= params.rows || quad >= params.quads) { continue; }
    var sum = vec4<i32>(0);
    var last = vec4<i32>(0);
    for (var s = 0u; s < SPLIT; s++) {
      sum += bitcast<vec4<i32>>(x_tile[s * DEPTH + i % QUADS * THREADS_N + tn][i / QUADS][tm]);
      if (HALVES == 2u) { last += bitcast<vec4<i32>>(x_tile[s * DEPTH + i % QUADS * THREADS_N + tn][OWN + i / QUADS][tm]); }
    }
    store_quad(acc_of(sum, last), channel_quad(quad), m, quad);
  }
}
