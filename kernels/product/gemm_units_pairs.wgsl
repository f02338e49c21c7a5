// The product of gemm_pairs.wgsl, of two activations, on int8 matrix units as gemm_units.wgsl uses them: who loads a row also
// adds up its elements, for the zero points.

const THREADS = LANES * SUBGROUPS_M * SUBGROUPS_N;
const TILE_M = UNIT_M * FRAGMENTS_M * SUBGROUPS_M;
const TILE_N = UNIT_N * FRAGMENTS_N * SUBGROUPS_N;
const LOADS_A = STEP * TILE_M / THREADS;
const LOADS_B = STEP * TILE_N / THREADS;
const UNIT_VECTORS = UNIT_K / 16u;
const PRODUCTS = STEP / UNIT_VECTORS;
const ROW = STEP + 1u;
// Quads of columns that a subgroup makes, and in a vector each, padded by two, a row of its sums.
const QUADS = UNIT_N * FRAGMENTS_N / 4u;
const SUMS_ROW = QUADS + 2u;
const ROWS_AT_ONCE = LANES / QUADS;
const ROUNDS = UNIT_M / ROWS_AT_ONCE;

var<workgroup> staged: array<vec4<u32>, max((TILE_M + TILE_N) * ROW, SUBGROUPS_M * SUBGROUPS_N * UNIT_M * SUMS_ROW)>;
var<workgroup> a_sums: array<array<i32, STEP>, TILE_M>;
var<workgroup> b_sums: array<array<i32, STEP>, TILE_N>;

@compute @workgroup_size(THREADS)
fn main(@builtin(local_invocation_index) local: u32,
        @builtin(workgroup_id) group: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>) {
  let all_rows = params.y_dims.z;
  let columns = params.y_dims.w;
  let column_tiles = (columns + TILE_N - 1u) / TILE_N;
  let row_tiles = (all_rows + TILE_M - 1u) / TILE_M;
  let index = group.y * groups.x + group.x;
  let batch = index / (row_tiles * column_tiles);
  if (batch >= params.y_dims.x * params.y_dims.y) { return; }
  let first_m = index / column_tiles % row_tiles * TILE_M;
  let first_n = index % column_tiles * TILE_N;
  let row_words = quads(params.a_dims.w);
  let subgroup = local / LANES;
  let lane = local % LANES;
  let first_row = subgroup / SUBGROUPS_N * (UNIT_M * FRAGMENTS_M);
  let first_column = subgroup % SUBGROUPS_N * (UNIT_N * FRAGMENTS_N);

  let k_lane = local % STEP;
  let lane_of_rows = local / STEP;
  let a_first = matrix_of(batch, params.a_dims);
  let b_first = matrix_of(batch, params.b_dims);
  var a_rows: array<u32, LOADS_A>;
  for (var i = 0u; i < LOADS_A; i++) {
    a_rows[i] = a_first + min(first_m + lane_of_rows + i * (THREADS / STEP), all_rows - 1u) * row_words;
  }
  var b_rows: array<u32, LOADS_B>;
  for (var i = 0u; i < LOADS_B; i++) {
    b_rows[i] = b_first + min(first_n + lane_of_rows + i * (THREADS / STEP), columns - 1u) * row_words;
  }
  var next_a: array<vec4<u32>, LOADS_A>;
  var next_b: array<vec4<u32>, LOADS_B>;
  for (var i = 0u; i < LOADS_A; i++) { next_a[i] = a_vector(a_rows[i], k_lane); }
  for (var i = 0u; i < LOADS_B; i++) { next_b[i] = b_vector(b_rows[i], k_lane); }

  var sums: array<array<Sums, FRAGMENTS_N>, FRAGMENTS_M>;
  var a_parts: array<i32, LOADS_A>;
  var b_parts: array<i32, LOADS_B>;
  for (var step = 0u; step < params.steps; step++) {
    for (var i = 0u; i < LOADS_A; i++) {
      staged[(lane_of_rows + i * (THREADS / STEP)) * ROW + k_lane] = next_a[i];
      a_parts[i] += sum_of_bytes(next_a[i]);
    }
    for (var i = 0u; i < LOADS_B; i++) {
      staged[(TILE_M + lane_of_rows + i * (THREADS / STEP)) * ROW + k_lane] = next_b[i];
      b_parts[i] += sum_of_bytes(next_b[i]);
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
  for (var i = 0u; i < LOADS_A; i++) { a_sums[lane_of_rows + i * (THREADS / STEP)][k_lane] = a_parts[i]; }
  for (var i = 0u; i < LOADS_B; i++) { b_sums[lane_of_rows + i * (THREADS / STEP)][k_lane] = b_parts[i]; }
  workgroupBarrier();

  // Each lane finishes one quad of columns in every ROWS_AT_ONCE-th row.
  let own = subgroup * (UNIT_M * SUMS_ROW);
  let lane_quad = lane % QUADS;
  let lane_row = lane / QUADS;
  let column = first_column + lane_quad * 4u;
  let quad = first_n / 4u + first_column / 4u + lane_quad;
  let channel = channel_quad(quad);
  let places = quad_places(quad);
  let of_columns = vec4<i32>(sum_of_row(b_sums[column]), sum_of_row(b_sums[column + 1u]),
                             sum_of_row(b_sums[column + 2u]), sum_of_row(b_sums[column + 3u]));
  for (var i = 0u; i < FRAGMENTS_M; i++) {
    var residual: array<ResidualWord, ROUNDS>;
    var addend: array<u32, ROUNDS>;
    for (var e = 0u; e < ROUNDS; e++) {
      let m = min(first_m + first_row + i * UNIT_M + lane_row + e * ROWS_AT_ONCE, all_rows - 1u);
      residual[e] = residual_of(batch * all_rows + m, min(quad, params.quads - 1u));
      addend[e] = addend_of(batch * all_rows + m, min(quad, params.quads - 1u));
    }
    for (var j = 0u; j < FRAGMENTS_N; j++) {
      subgroupMatrixStore<row_major>(&staged, own + j * (UNIT_N / 4u), sums[i][j], SUMS_ROW);
    }
    workgroupBarrier();
    for (var e = 0u; e < ROUNDS; e++) {
      let row = first_row + i * UNIT_M + lane_row + e * ROWS_AT_ONCE;
      let ab = bitcast<vec4<i32>>(staged[own + (lane_row + e * ROWS_AT_ONCE) * SUMS_ROW + lane_quad]);
      let sum = without_zeros(ab, sum_of_row(a_sums[row]), of_columns, params.a_dims.w);
      let value = joined(quad_value(vec4<f32>(sum), channel, residual[e]), addend[e]);
      let m = first_m + row;
      if (m < all_rows && quad < params.quads) { store_joined(value, batch * all_rows + m, quad, places); }
    }
    workgroupBarrier();
  }
}
