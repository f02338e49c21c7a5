// The matrix product of gemm.wgsl for software adapters, where workgroup memory is no faster than a buffer: each thread
// makes ROWS neighbouring rows x QUADS channel quads in registers and reads x and the weights itself. The threads of a
// workgroup lie along the rows, so that they read the same weights. For q8ta_wgpu/program/unroll.py all loops but that over k
// have constant bounds. Linked: as for gemm.wgsl, with STEP, SPLIT and THREADS_N 1.

// A CPU does best to read anything where a tap is outside the image, and not use it: bounds are checked.
const BRANCHES = false;
const TILE_ROWS = THREADS_M * ROWS / HALVES;
const OWN = ROWS / HALVES;
const HELD = (QUADS + 1u) / 2u;

// Lavapipe loads thread by thread, also what all of them read. Where eight threads are a subgroup, each loads an eighth
// of the weights of a step, and they exchange them. Linked: held_weights and weight_of, `at` being a step's first vector.
fn weights_held(at: u32, local: u32) -> vec4<u32> { return load_w(at + local); }
fn weight_shuffled(held: vec4<u32>, at: u32, i: u32) -> vec4<u32> { return subgroupShuffle(held, i % 8u); }

fn no_weights(at: u32, local: u32) -> vec4<u32> { return vec4<u32>(); }
fn weight_read(held: vec4<u32>, at: u32, i: u32) -> vec4<u32> { return load_w(at + i); }

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
  for (var q = 0u; q < QUADS; q++) {
    for (var h = 0u; h < HALVES; h++) {
      let start = start_half(phase * params.quads + first_quad + q, h);
      for (var i = 0u; i < OWN; i++) { acc[(h * OWN + i) * QUADS + q] = start; }
    }
  }
  let steps = steps_of(phase);
  let first_k = phase * params.steps;
  var w_at = (first_k * column_tiles + index % column_tiles * params.steps) * QUADS * 4u;
  for (var step = 0u; step < steps; step++) {
    let place = place_of(first_k + step);
    var a: array<vec4<u32>, ROWS>;
    for (var i = 0u; i < OWN; i++) {
      let v = load_x(rows[i], place);
      for (var h = 0u; h < HALVES; h++) { a[h * OWN + i] = half_vector(v, h); }
    }
    var held: array<vec4<u32>, HELD>;
    for (var j = 0u; j < HELD; j++) { held[j] = held_weights(w_at + 8u * j, local); }
    for (var q = 0u; q < QUADS; q++) {
      let b0 = weight_of(held[q / 2u], w_at, 4u * q);
      let b1 = weight_of(held[q / 2u], w_at, 4u * q + 1u);
      let b2 = weight_of(held[q / 2u], w_at, 4u * q + 2u);
      let b3 = weight_of(held[q / 2u], w_at, 4u * q + 3u);
      let factor = weight_factor(first_quad + q, step);
      for (var i = 0u; i < ROWS; i++) {
        acc[i * QUADS + q] = add_products(acc[i * QUADS + q], a[i], b0, b1, b2, b3, factor);
      }
    }
    w_at += 4u * QUADS;
  }
  for (var q = 0u; q < QUADS; q++) {
    let quad = first_quad + q;
    if (quad < params.quads) {
      let channel = channel_quad(quad);
      for (var i = 0u; i < OWN; i++) {
        let m = pixel_of(first_m + i);
        let sum = acc_of(acc[i * QUADS + q], acc[((HALVES - 1u) * OWN + i) * QUADS + q]);
        if (m < params.rows) { store_quad(sum, channel, m, quad); }
      }
    }
  }
}
