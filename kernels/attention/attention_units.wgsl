// Attention on int8 matrix units, which read rows and columns as in kernels/product/gemm_units.wgsl. A subgroup makes
// UNIT_M rows of either product, UNIT_N columns at a time; subgroups with the same rows share the columns. Zero points
// of left operands are removed by products with constant matrices, which cost the units little. Sums pass through the
// memory of keys and values.

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
const SCORE_TURNS = KEYS / (UNIT_N * SUBGROUPS_N);
const DEPTH_PRODUCTS = DEPTH / (UNIT_K / 4u);
const KEYS_PRODUCTS = KEYS / UNIT_K;
const CONTEXT_TURNS = (WIDTH + UNIT_N * SUBGROUPS_N - 1u) / (UNIT_N * SUBGROUPS_N);
// Quads of columns of a matrix of sums, and in a vector each, padded by one, a row of it.
const QUADS = UNIT_N / 4u;
const SUMS_ROW = QUADS + 1u;
const ROWS_AT_ONCE = LANES / QUADS;
const ROUNDS = UNIT_M / ROWS_AT_ONCE;

var<workgroup> queries: array<vec4<u32>, ROWS * DEPTH_ROW>;
// Keys, values, or sums.
var<workgroup> others: array<vec4<u32>, max(max(KEYS * DEPTH_ROW, KEYS * WIDTH_ROW), SUBGROUPS * UNIT_M * SUMS_ROW)>;

fn value_each(at: u32) -> vec4<u32> { return vec4<u32>(v[at], v[at + 1u], v[at + 2u], v[at + 3u]); }
fn value_whole(at: u32) -> vec4<u32> { return v[at / 4u]; }

// Rows past the last key are 0: their weights are anything.
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
  let part = subgroup % SUBGROUPS_N;
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
  let steps = taken_steps(block, local);
  // An int8 less its zero point is it plus at most 127 plus at most 1.
  let query_plus = min(-params.query_zero, 127);
  let query_one = -params.query_zero - query_plus;
  for (var step = 0u; step < STEPS; step++) {
    if (step < steps) {
      for (var i = 0u; i < KEY_LOADS; i++) {
        let item = local + i * THREADS;
        if (item < KEYS * DEPTH_VECTORS) { others[item / DEPTH_VECTORS * DEPTH_ROW + item % DEPTH_VECTORS] = next_key[i]; }
      }
      workgroupBarrier();
      if (step == 0u && local < ROWS) {
        query_terms[local] = -params.key_zero * (sum_of_query(local) - i32(params.depth) * params.query_zero);
      }
      if (step + 1u < steps) {
        for (var i = 0u; i < KEY_LOADS; i++) { next_key[i] = load_key(block, step + 1u, local + i * THREADS); }
      }
      var scores = array<Sums, SCORE_TURNS>();
      for (var s = 0u; s < DEPTH_PRODUCTS; s++) {
        let a = subgroupMatrixLoad<Left, row_major>(&queries, first_row * DEPTH_ROW + s * UNIT_VECTORS, DEPTH_ROW);
        for (var turn = 0u; turn < SCORE_TURNS; turn++) {
          let column = (part + turn * SUBGROUPS_N) * UNIT_N;
          let b = subgroupMatrixLoad<Right, col_major>(&others, column * DEPTH_ROW + s * UNIT_VECTORS, DEPTH_ROW);
          scores[turn] = subgroupMatrixMultiplyAccumulate(a, b, scores[turn]);
          if (query_plus != 0) { scores[turn] = subgroupMatrixMultiplyAccumulate(Left(query_plus), b, scores[turn]); }
          if (query_one != 0) { scores[turn] = subgroupMatrixMultiplyAccumulate(Left(query_one), b, scores[turn]); }
        }
      }
      var found: array<vec4<i32>, SCORE_TURNS * ROUNDS>;
      for (var turn = 0u; turn < SCORE_TURNS; turn++) {
        workgroupBarrier();
        subgroupMatrixStore<row_major>(&others, own, scores[turn], SUMS_ROW);
        workgroupBarrier();
        let column = (part + turn * SUBGROUPS_N) * UNIT_N + lane_quad * 4u;
        for (var e = 0u; e < ROUNDS; e++) {
          let row = lane_row + e * ROWS_AT_ONCE;
          let sum = bitcast<vec4<i32>>(others[own + row * SUMS_ROW + lane_quad]);
          found[turn * ROUNDS + e] = found_scores(block, first_row + row, step, column, sum);
        }
      }
      for (var e = 0u; e < ROUNDS; e++) {
        var most = vec4<i32>(LEAST);
        for (var turn = 0u; turn < SCORE_TURNS; turn++) { most = max(most, found[turn * ROUNDS + e]); }
        note_largest(first_row + lane_row + e * ROWS_AT_ONCE, step, most);
      }
      workgroupBarrier();
      for (var turn = 0u; turn < SCORE_TURNS; turn++) {
        let column = (part + turn * SUBGROUPS_N) * UNIT_N + lane_quad * 4u;
        for (var e = 0u; e < ROUNDS; e++) {
          keep_scores(first_row + lane_row + e * ROWS_AT_ONCE, step, column, found[turn * ROUNDS + e]);
        }
      }
    }
  }

  var next_value: array<vec4<u32>, VALUE_LOADS>;
  for (var i = 0u; i < VALUE_LOADS; i++) { next_value[i] = load_value(block, 0u, local + i * THREADS); }
  workgroupBarrier();
  soften(local, steps);

  var context: array<Sums, CONTEXT_TURNS>;
  for (var step = 0u; step < STEPS; step++) {
    if (step < steps) {
      for (var i = 0u; i < VALUE_LOADS; i++) {
        let item = local + i * THREADS;
        if (item < KEYS * WIDTH_VECTORS) { others[item / WIDTH_VECTORS * WIDTH_ROW + item % WIDTH_VECTORS] = next_value[i]; }
      }
      workgroupBarrier();
      if (step + 1u < steps) {
        for (var i = 0u; i < VALUE_LOADS; i++) { next_value[i] = load_value(block, step + 1u, local + i * THREADS); }
      }
      for (var s = 0u; s < KEYS_PRODUCTS; s++) {
        let at = first_row * LENGTH_ROW + step * (KEYS / 4u) + s * (UNIT_K / 4u);
        let a = subgroupMatrixLoad<Left, row_major>(&weights, at, LENGTH_ROW);
        for (var turn = 0u; turn < CONTEXT_TURNS; turn++) {
          let column = min(part + turn * SUBGROUPS_N, WIDTH / UNIT_N - 1u);
          let b = subgroupMatrixLoad<Right, row_major>(&others, s * UNIT_K * WIDTH_ROW + column * (UNIT_N / 16u), WIDTH_ROW);
          context[turn] = subgroupMatrixMultiplyAccumulate(a, b, context[turn]);
          context[turn] = subgroupMatrixMultiplyAccumulate(Left(-127), b, context[turn]);
        }
      }
      workgroupBarrier();
    }
  }
  for (var turn = 0u; turn < CONTEXT_TURNS; turn++) {
    subgroupMatrixStore<row_major>(&others, own, context[turn], SUMS_ROW);
    workgroupBarrier();
    let column = (part + turn * SUBGROUPS_N) * UNIT_N + lane_quad * 4u;
    for (var e = 0u; e < ROUNDS; e++) {
      let row = lane_row + e * ROWS_AT_ONCE;
      store_context(block, first_row + row, column, -bitcast<vec4<i32>>(others[own + row * SUMS_ROW + lane_quad]));
    }
    workgroupBarrier();
  }
}
