// Attention on int8 matrix units, which read rows and columns as in kernels/product/gemm_units.wgsl. A subgroup
// computes UNIT_M rows of a product, UNIT_N columns at a time. Subgroups with the same rows share the columns.
// The zero points of left operands are subtracted by products with constant matrices, which cost the units little. Sums
// are stored in the memory of keys and values to change their layout.
// Uses subgroup_matrix.

const SUBGROUPS = THREADS / LANES;
const SUBGROUPS_M = ROWS / UNIT_M;
const SUBGROUPS_N = SUBGROUPS / SUBGROUPS_M;
const DEPTH_VECTORS = DEPTH / 4u;
const DEPTH_ROW = DEPTH_VECTORS + 1u;
const WIDTH_VECTORS = WIDTH / 16u;
const WIDTH_ROW = WIDTH_VECTORS + 1u;
const UNIT_VECTORS = UNIT_K / 16u;
const QUERY_LOADS = (ROWS * DEPTH_VECTORS + THREADS - 1u) / THREADS;
const KEY_LOADS = (KEYS * DEPTH_VECTORS + THREADS - 1u) / THREADS;
const VALUE_LOADS = (KEYS * WIDTH_VECTORS + THREADS - 1u) / THREADS;
const SCORE_TILES = KEYS / (UNIT_N * SUBGROUPS_N);
const DEPTH_PRODUCTS = DEPTH / (UNIT_K / 4u);
const KEYS_PRODUCTS = KEYS / UNIT_K;
const CONTEXT_TILES = (WIDTH + UNIT_N * SUBGROUPS_N - 1u) / (UNIT_N * SUBGROUPS_N);
// Vectors in a row of a matrix of sums (each has four columns), and with one vector of padding.
const QUADS = UNIT_N / 4u;
const SUMS_ROW = QUADS + 1u;
const ROWS_AT_ONCE = LANES / QUADS;
const ROUNDS = UNIT_M / ROWS_AT_ONCE;

var<workgroup> queries: array<vec4<u32>, ROWS * DEPTH_ROW>;
// Keys, values, or sums.
var<workgroup> others: array<vec4<u32>, max(max(KEYS * DEPTH_ROW, KEYS * WIDTH_ROW), SUBGROUPS * UNIT_M * SUMS_ROW)>;

fn value_by_words(at: u32) -> vec4<u32> { return vec4<u32>(v[at], v[at + 1u], v[at + 2u], v[at + 3u]); }
fn value_by_vector(at: u32) -> vec4<u32> { return v[at / 4u]; }

// Values after the last key are 0, since their weights are undefined.
fn load_value(block: Block, step: u32, item: u32) -> vec4<u32> {
  let row = step * KEYS + item / WIDTH_VECTORS;
  let found = value_words(block.value + min(row, params.keys - 1u) * params.value.w + item % WIDTH_VECTORS * 4u);
  return select(vec4<u32>(0u), found, row < params.keys);
}

fn sum_of_query(row: u32) -> i32 {
  var sum = 0;
  for (var i = 0u; i < DEPTH_VECTORS; i++) {
    let four = queries[row * DEPTH_ROW + i];
    sum += dot4(four.x, BYTES) + dot4(four.y, BYTES) + dot4(four.z, BYTES) + dot4(four.w, BYTES);
  }
  return sum;
}

@compute @workgroup_size(THREADS)
fn main(@builtin(local_invocation_index) local: u32,
        @builtin(workgroup_id) group: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>) {
  let index = group.y * groups.x + group.x;
  if (index >= params.matrices * blocks()) { return; }
  let block = block_of(index);
  let subgroup = local / LANES;
  let own = subgroup * (UNIT_M * SUMS_ROW);
  let first_row = subgroup / SUBGROUPS_N * UNIT_M;
  let subgroup_column = subgroup % SUBGROUPS_N;
  let lane_quad = local % LANES % QUADS;
  let lane_row = local % LANES / QUADS;
  var next_key: array<vec4<u32>, KEY_LOADS>;
  for (var i = 0u; i < KEY_LOADS; i++) { next_key[i] = load_key(block, 0u, local + i * THREADS); }
  for (var i = 0u; i < QUERY_LOADS; i++) {
    let item = local + i * THREADS;
    if (item < ROWS * DEPTH_VECTORS) {
      queries[item / DEPTH_VECTORS * DEPTH_ROW + item % DEPTH_VECTORS] = load_query(block, item);
    }
  }
  begin(local);
  let steps = needed_steps(block, local);
  // The left operand less its zero point is computed as left + query_plus + query_one, both of which are int8.
  let query_plus = min(-params.query_zero, 127);
  let query_one = -params.query_zero - query_plus;
  for (var step = 0u; step < STEPS; step++) {
    if (step < steps) {
      for (var i = 0u; i < KEY_LOADS; i++) {
        let item = local + i * THREADS;
        let at = item / DEPTH_VECTORS * DEPTH_ROW + item % DEPTH_VECTORS;
        if (item < KEYS * DEPTH_VECTORS) { others[at] = next_key[i]; }
      }
      workgroupBarrier();
      if (step == 0u && local < ROWS) {
        query_terms[local] = -params.key_zero * (sum_of_query(local) - i32(params.depth) * params.query_zero);
      }
      if (step + 1u < steps) {
        for (var i = 0u; i < KEY_LOADS; i++) { next_key[i] = load_key(block, step + 1u, local + i * THREADS); }
      }
      var scores = array<Sums, SCORE_TILES>();
      for (var s = 0u; s < DEPTH_PRODUCTS; s++) {
        let a = subgroupMatrixLoad<Left, row_major>(&queries, first_row * DEPTH_ROW + s * UNIT_VECTORS, DEPTH_ROW);
        for (var tile = 0u; tile < SCORE_TILES; tile++) {
          let column = (subgroup_column + tile * SUBGROUPS_N) * UNIT_N;
          let b = subgroupMatrixLoad<Right, col_major>(&others, column * DEPTH_ROW + s * UNIT_VECTORS, DEPTH_ROW);
          scores[tile] = subgroupMatrixMultiplyAccumulate(a, b, scores[tile]);
          if (query_plus != 0) { scores[tile] = subgroupMatrixMultiplyAccumulate(Left(query_plus), b, scores[tile]); }
          if (query_one != 0) { scores[tile] = subgroupMatrixMultiplyAccumulate(Left(query_one), b, scores[tile]); }
        }
      }
      var found: array<vec4<i32>, SCORE_TILES * ROUNDS>;
      for (var tile = 0u; tile < SCORE_TILES; tile++) {
        workgroupBarrier();
        subgroupMatrixStore<row_major>(&others, own, scores[tile], SUMS_ROW);
        workgroupBarrier();
        let column = (subgroup_column + tile * SUBGROUPS_N) * UNIT_N + lane_quad * 4u;
        for (var e = 0u; e < ROUNDS; e++) {
          let row = lane_row + e * ROWS_AT_ONCE;
          let sum = bitcast<vec4<i32>>(others[own + row * SUMS_ROW + lane_quad]);
          found[tile * ROUNDS + e] = block_scores(block, first_row + row, step, column, sum);
        }
      }
      for (var e = 0u; e < ROUNDS; e++) {
        var most = vec4<i32>(LEAST);
        for (var tile = 0u; tile < SCORE_TILES; tile++) { most = max(most, found[tile * ROUNDS + e]); }
        update_largest(first_row + lane_row + e * ROWS_AT_ONCE, step, most);
      }
      workgroupBarrier();
      for (var tile = 0u; tile < SCORE_TILES; tile++) {
        let column = (subgroup_column + tile * SUBGROUPS_N) * UNIT_N + lane_quad * 4u;
        for (var e = 0u; e < ROUNDS; e++) {
          store_distances(first_row + lane_row + e * ROWS_AT_ONCE, step, column, found[tile * ROUNDS + e]);
        }
      }
    }
  }

  var next_value: array<vec4<u32>, VALUE_LOADS>;
  for (var i = 0u; i < VALUE_LOADS; i++) { next_value[i] = load_value(block, 0u, local + i * THREADS); }
  workgroupBarrier();
  softmax_weights(local, steps);

  var context: array<Sums, CONTEXT_TILES>;
  for (var step = 0u; step < STEPS; step++) {
    if (step < steps) {
      for (var i = 0u; i < VALUE_LOADS; i++) {
        let item = local + i * THREADS;
        let at = item / WIDTH_VECTORS * WIDTH_ROW + item % WIDTH_VECTORS;
        if (item < KEYS * WIDTH_VECTORS) { others[at] = next_value[i]; }
      }
      workgroupBarrier();
      if (step + 1u < steps) {
        for (var i = 0u; i < VALUE_LOADS; i++) { next_value[i] = load_value(block, step + 1u, local + i * THREADS); }
      }
      for (var s = 0u; s < KEYS_PRODUCTS; s++) {
        let at = first_row * LENGTH_ROW + step * (KEYS / 4u) + s * (UNIT_K / 4u);
        let a = subgroupMatrixLoad<Left, row_major>(&weights, at, LENGTH_ROW);
        for (var tile = 0u; tile < CONTEXT_TILES; tile++) {
          let column = min(subgroup_column + tile * SUBGROUPS_N, WIDTH / UNIT_N - 1u);
          let b = subgroupMatrixLoad<Right, row_major>(&others, s * UNIT_K * WIDTH_ROW + column * (UNIT_N / 16u), WIDTH_ROW);
          context[tile] = subgroupMatrixMultiplyAccumulate(a, b, context[tile]);
          context[tile] = subgroupMatrixMultiplyAccumulate(Left(-127), b, context[tile]);
        }
      }
      workgroupBarrier();
    }
  }
  for (var tile = 0u; tile < CONTEXT_TILES; tile++) {
    subgroupMatrixStore<row_major>(&others, own, context[tile], SUMS_ROW);
    workgroupBarrier();
    let column = (subgroup_column + tile * SUBGROUPS_N) * UNIT_N + lane_quad * 4u;
    for (var e = 0u; e < ROUNDS; e++) {
      let row = lane_row + e * ROWS_AT_ONCE;
      store_context(block, first_row + row, column, -bitcast<vec4<i32>>(others[own + row * SUMS_ROW + lane_quad]));
    }
    workgroupBarrier();
  }
}
