// The product of gemm_pairs.wgsl, of two activations, on int8 matrix units as in gemm_units.wgsl. The thread that loads
// a row also sums its elements, which is needed for the zero points. For int16, UNIT_M rows of high halves are followed
// by the low halves of the same rows.
// Open:
//   UNIT_M, UNIT_N, LANES, SUBGROUPS_M, SUBGROUPS_N, FRAGMENTS_M, FRAGMENTS_N, STEP, HALVES_A, HALVES_B: the tile
//   a_vector(row: u32, k: u32) -> AVector, b_vector(row: u32, k: u32) -> BVector, a_zero(half: u32) -> i32,
//     b_zero(half: u32) -> i32, real_products(sums: Products) -> vec4<f32>: functions of pairs_rows
// Uses pairs_rows, quad, stages, subgroup_matrix.

const TILE_N = UNIT_N * FRAGMENTS_N * SUBGROUPS_N;
// UNIT_QUADS: column quads of a matrix. QUADS: those of a subgroup's result. SUMS_ROW: vectors in a row of its sums, a
// vector for each quad and two of padding.
const UNIT_QUADS = UNIT_N / 4u;
const SUMS_ROW = UNIT_QUADS * FRAGMENTS_N + 2u;
const QUADS = UNIT_QUADS * FRAGMENTS_N / HALVES_B;
const ROWS_AT_ONCE = LANES / QUADS;
const ROUNDS = UNIT_M / ROWS_AT_ONCE;

var<workgroup> staged: array<vec4<u32>, max((TILE_M + TILE_N) * ROW, SUBGROUPS_M * SUBGROUPS_N * UNIT_M * SUMS_ROW)>;

@compute @workgroup_size(THREADS)
fn main(@builtin(local_invocation_index) local: u32,
        @builtin(workgroup_id) group: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>) {
  let all_rows = params.y_dims.z;
  let tile = tile_of(group.y * groups.x + group.x);
  if (tile.batch >= params.y_dims.x * params.y_dims.y) { return; }
  let subgroup = local / LANES;
  let lane = local % LANES;
  let first_row = subgroup / SUBGROUPS_N * (UNIT_M * FRAGMENTS_M);
  let first_column = subgroup % SUBGROUPS_N * (UNIT_N * FRAGMENTS_N);

  let k_lane = local % STEP;
  let lane_of_rows = local / STEP;
  let a_staged = lane_of_rows / UNIT_M * (UNIT_M * HALVES_A) + lane_of_rows % UNIT_M;
  let b_staged = TILE_M + lane_of_rows / UNIT_N * (UNIT_N * HALVES_B) + lane_of_rows % UNIT_N;
  var a_rows: array<u32, LOADS_A>;
  for (var i = 0u; i < LOADS_A; i++) { a_rows[i] = row_of_a(tile.batch, tile.m + lane_of_rows + i * (THREADS / STEP)); }
  var b_rows: array<u32, LOADS_B>;
  for (var i = 0u; i < LOADS_B; i++) { b_rows[i] = row_of_b(tile.batch, tile.n + lane_of_rows + i * (THREADS / STEP)); }
  var next_a: array<AVector, LOADS_A>;
  var next_b: array<BVector, LOADS_B>;
  for (var i = 0u; i < LOADS_A; i++) { next_a[i] = a_vector(a_rows[i], k_lane); }
  for (var i = 0u; i < LOADS_B; i++) { next_b[i] = b_vector(b_rows[i], k_lane); }

  var sums: array<array<Sums, FRAGMENTS_N>, FRAGMENTS_M>;
  var a_parts: array<i32, LOADS_A * HALVES_A>;
  var b_parts: array<i32, LOADS_B * HALVES_B>;
  for (var step = 0u; step < params.steps; step++) {
    for (var i = 0u; i < LOADS_A; i++) {
      for (var h = 0u; h < HALVES_A; h++) {
        let v = a_half(next_a[i], h, step * STEP + k_lane);
        staged[(a_staged + i * (THREADS / STEP) * HALVES_A + h * UNIT_M) * ROW + k_lane] = v;
        a_parts[i * HALVES_A + h] += sum_of_bytes(v);
      }
    }
    for (var i = 0u; i < LOADS_B; i++) {
      for (var h = 0u; h < HALVES_B; h++) {
        let v = b_half(next_b[i], h, step * STEP + k_lane);
        staged[(b_staged + i * (THREADS / STEP) * HALVES_B + h * UNIT_N) * ROW + k_lane] = v;
        b_parts[i * HALVES_B + h] += sum_of_bytes(v);
      }
    }
    workgroupBarrier();
    if (step + 1u < params.steps) {
      let k = (step + 1u) * STEP + k_lane;
      for (var i = 0u; i < LOADS_A; i++) { next_a[i] = a_vector(a_rows[i], k); }
      for (var i = 0u; i < LOADS_B; i++) { next_b[i] = b_vector(b_rows[i], k); }
    }
    for (var s = 0u; s < PRODUCTS; s++) {
      var left: array<Left, FRAGMENTS_M>;
      for (var i = 0u; i < FRAGMENTS_M; i++) {
        left[i] = subgroupMatrixLoad<Left, row_major>(&staged, (first_row + i * UNIT_M) * ROW + s * UNIT_VECTORS, ROW);
      }
      for (var j = 0u; j < FRAGMENTS_N; j++) {
        let at = (TILE_M + first_column + j * UNIT_N) * ROW + s * UNIT_VECTORS;
        let right = subgroupMatrixLoad<Right, col_major>(&staged, at, ROW);
        for (var i = 0u; i < FRAGMENTS_M; i++) {
          sums[i][j] = subgroupMatrixMultiplyAccumulate(left[i], right, sums[i][j]);
        }
      }
    }
    workgroupBarrier();
  }
  for (var i = 0u; i < LOADS_A * HALVES_A; i++) {
    a_sums[i % HALVES_A * RESULT_M + lane_of_rows + i / HALVES_A * (THREADS / STEP)][k_lane] = a_parts[i];
  }
  for (var i = 0u; i < LOADS_B * HALVES_B; i++) {
    b_sums[i % HALVES_B * RESULT_N + lane_of_rows + i / HALVES_B * (THREADS / STEP)][k_lane] = b_parts[i];
  }
  workgroupBarrier();

  // A lane computes the results of one column quad in every ROWS_AT_ONCE-th row.
  let own = subgroup * (UNIT_M * SUMS_ROW);
  let lane_quad = lane % QUADS;
  let lane_row = lane / QUADS;
  let staged_quad = lane_quad / UNIT_QUADS * (UNIT_QUADS * HALVES_B) + lane_quad % UNIT_QUADS;
  let column = first_column / HALVES_B + lane_quad * 4u;
  let quad = tile.n / 4u + column / 4u;
  let channel = channel_quad(quad);
  let offsets = quad_offsets(quad);
  var of_columns: array<vec4<i32>, HALVES_B>;
  for (var h = 0u; h < HALVES_B; h++) { of_columns[h] = sums_of_columns(h * RESULT_N + column); }
  // This is one loop over matrices: with an inner loop over halves, the sums leave registers (int8 on an H200: 16 -> 27
  // us).
  var products: array<Products, ROUNDS>;
  for (var f = 0u; f < FRAGMENTS_M; f++) {
    let half = f % HALVES_A;
    let own_row = first_row / HALVES_A + f / HALVES_A * UNIT_M + lane_row;
    var residual: array<ResidualWord, ROUNDS>;
    var addend: array<u32, ROUNDS>;
    for (var e = 0u; e < ROUNDS; e++) {
      let m = min(tile.m + own_row + e * ROWS_AT_ONCE, all_rows - 1u);
      residual[e] = residual_of(tile.batch * all_rows + m, min(quad, params.quads - 1u));
      addend[e] = addend_of(tile.batch * all_rows + m, min(quad, params.quads - 1u));
    }
    for (var j = 0u; j < FRAGMENTS_N; j++) {
      subgroupMatrixStore<row_major>(&staged, own + j * UNIT_QUADS, sums[f][j], SUMS_ROW);
    }
    workgroupBarrier();
    for (var e = 0u; e < ROUNDS; e++) {
      let of_row = sum_of_row(a_sums[half * RESULT_M + own_row + e * ROWS_AT_ONCE]);
      for (var hb = 0u; hb < HALVES_B; hb++) {
        let at = own + (lane_row + e * ROWS_AT_ONCE) * SUMS_ROW + staged_quad + hb * UNIT_QUADS;
        let ab = bitcast<vec4<i32>>(staged[at]);
        products[e][half * HALVES_B + hb] = without_zeros(ab, of_row, of_columns[hb], a_zero(half), b_zero(hb));
      }
      if (half == HALVES_A - 1u) {
        let value = after_rounding(quad_value(real_products(products[e]), channel, residual[e]), addend[e]);
        let m = tile.m + own_row + e * ROWS_AT_ONCE;
        if (m < all_rows && quad < params.quads) { store_result(value, tile.batch * all_rows + m, quad, offsets); }
      }
    }
    workgroupBarrier();
  }
}
