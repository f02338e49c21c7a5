// The matrix product of gemm.wgsl for software adapters, where workgroup memory is no faster than a buffer. Each thread
// makes ROWS neighbouring rows x QUADS channel quads, a multiple of four, in registers, and reads x and the weights
// itself. The threads of a workgroup lie along the rows, so that they read the same weights.
// For q8ta_wgpu/program/unroll.py all loops except those over k and over turns have constant bounds.
// Open:
//   THREADS_M, ROWS, QUADS, HALVES: the tile
//   Row, RowVector, row_of, k_offset_of, load_x, phase_of, steps_of, pixel_of, half_vector, acc_of, real_acc,
//     weight_factor: as in gemm
//   k_offset_from(found: KOffset, k: u32) -> KOffset, k_offset_after(k_offset: KOffset) -> KOffset: gemm_rows,
//     window_vectors, window_words, gemm_window_image, gemm_window_transposed, parts_window, parts_gated
//   add_sum(acc: vec4<i32>, sum: vec4<i32>, factor: vec4<i32>) -> vec4<i32>: weights_8, weights_4
//   TURNS, WORDS, held_weights(at: u32, local: u32) -> vec4<u32>, weight_of(held: vec4<u32>, at: u32, i: u32) -> vec4<u32>,
//     held_channels(quad: u32, start: u32) -> Held, start_of(held: Held, start: u32, i: u32, half: u32) -> vec4<i32>,
//     channel_of(held: Held, quad: u32, i: u32) -> Channel: exchange_by_loads, exchange_by_shuffles
// Uses quad, stages.

// On CPUs it is fastest to read any word where a tap is outside of the image, and to ignore it: bounds are checked.
const BRANCHES = false;
const TILE_ROWS = THREADS_M * ROWS / HALVES;
const OWN = ROWS / HALVES;
const HELD = QUADS / 2u;
const VECTORS = QUADS / 4u;

// Rows are loaded at once, or one after the other where a load is long, since lavapipe compiles as many copies of it.
const LOADS = OWN;
const ONE_BY_ONE = u32(OWN);

@compute @workgroup_size(THREADS_M)
fn main(@builtin(local_invocation_index) local: u32,
        @builtin(workgroup_id) group: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>) {
  let column_tiles = (params.quads + QUADS - 1u) / QUADS;
  let index = group.y * groups.x + group.x;
  let tile_m = index / column_tiles * TILE_ROWS;
  let first_m = tile_m + local * OWN;
  let first_quad = index % column_tiles * QUADS;
  let phase = phase_of(tile_m);

  var rows: array<Row, OWN>;
  for (var i = 0u; i < OWN; i++) { rows[i] = row_of(min(first_m + i, params.rows - 1u)); }
  var acc: array<vec4<i32>, ROWS * QUADS>;
  let first_start = phase * params.quads + first_quad;
  let own = local % QUADS;
  let held_numbers = held_channels(first_quad + own, first_start + own);
  for (var q = 0u; q < QUADS; q++) {
    for (var h = 0u; h < HALVES; h++) {
      let start = start_of(held_numbers, first_start, q, h);
      for (var i = 0u; i < OWN; i++) { acc[(h * OWN + i) * QUADS + q] = start; }
    }
  }
  let steps = steps_of(phase);
  let first_k = phase * params.steps;
  var w_at = (first_k * column_tiles + index % column_tiles * params.steps) * QUADS * 4u;
  var next = k_offset_of(first_k);
  for (var step = 0u; step < steps; step++) {
    let k_offset = k_offset_from(next, first_k + step);
    var loaded: array<RowVector, OWN>;
    for (var i = 0u; i < LOADS; i++) { loaded[i] = load_x(rows[i], k_offset); }
    var a: array<vec4<u32>, ROWS>;
    for (var i = 0u; i < OWN; i++) {
      for (var h = 0u; h < HALVES; h++) { a[h * OWN + i] = half_vector(loaded[i], h); }
    }
    var held: array<vec4<u32>, HELD>;
    for (var j = 0u; j < HELD; j++) { held[j] = held_weights(w_at + 8u * j, local); }
    for (var turn = 0u; turn < TURNS; turn++) {
      for (var q = 0u; q < QUADS; q++) {
        let b0 = weight_of(held[q / 2u], w_at, 4u * q);
        let b1 = weight_of(held[q / 2u], w_at, 4u * q + 1u);
        let b2 = weight_of(held[q / 2u], w_at, 4u * q + 2u);
        let b3 = weight_of(held[q / 2u], w_at, 4u * q + 3u);
        let factor = weight_factor(first_quad + q, step);
        for (var i = 0u; i < ROWS; i++) {
          var sum = vec4<i32>(0);
          for (var j = 0u; j < WORDS; j++) { sum += dot_words(a[i][j], vec4<u32>(b0[j], b1[j], b2[j], b3[j])); }
          acc[i * QUADS + q] = add_sum(acc[i * QUADS + q], sum, factor);
        }
      }
      for (var i = 0u; i < ROWS; i++) { a[i] = rotated(a[i]); }
      for (var j = 0u; j < HELD; j++) { held[j] = rotated(held[j]); }
    }
    w_at += 4u * QUADS;
    next = k_offset_after(k_offset);
  }
  // Past the last row or quad, some word within bounds is read, and nothing is stored.
  var pixels: array<u32, OWN>;
  for (var i = 0u; i < OWN; i++) { pixels[i] = pixel_of(first_m + i); }
  for (var q = 0u; q < QUADS; q++) {
    let channel = channel_of(held_numbers, first_quad, q);
    for (var i = 0u; i < OWN; i++) {
      let sum = real_acc(acc_of(acc[i * QUADS + q], acc[((HALVES - 1u) * OWN + i) * QUADS + q]));
      acc[i * QUADS + q] = quad_value(sum, channel, residual_of(pixels[i], first_quad + q));
    }
  }
  for (var i = 0u; i < OWN; i++) {
    if (pixels[i] < params.rows) {
      for (var v = 0u; v < VECTORS; v++) {
        let at = i * QUADS + 4u * v;
        store_four(acc[at], acc[at + 1u], acc[at + 2u], acc[at + 3u], pixels[i], first_quad + 4u * v);
      }
    }
  }
}

// The words of a vector, rotated so that the next turn multiplies the next word.
fn rotated(v: vec4<u32>) -> vec4<u32> { return v.yzwx; }

fn store_within(v: vec4<i32>, m: u32, quad: u32) {
  if (quad < params.quads) { store_value(v, m, quad, quad_offsets(quad)); }
}

// Stores four quads: word by word, or as a vector if rows of the result are whole vectors.
fn store_four(a: vec4<i32>, b: vec4<i32>, c: vec4<i32>, d: vec4<i32>, m: u32, quad: u32) {
  store_within(a, m, quad);
  store_within(b, m, quad + 1u);
  store_within(c, m, quad + 2u);
  store_within(d, m, quad + 3u);
}

fn store_vector(a: vec4<i32>, b: vec4<i32>, c: vec4<i32>, d: vec4<i32>, m: u32, quad: u32) {
  if (quad < params.quads) {
    y[y_quad(m, quad) / 4u] = vec4<u32>(
      result_word_of(a, m, quad), result_word_of(b, m, quad + 1u),
      result_word_of(c, m, quad + 2u), result_word_of(d, m, quad + 3u));
  }
}

fn result_word_of(v: vec4<i32>, m: u32, quad: u32) -> u32 { return packed_result(after_rounding(v, addend_of(m, quad))); }
