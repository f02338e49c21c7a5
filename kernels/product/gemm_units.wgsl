// The product of gemm.wgsl on int8 matrix units: y[m, c] = sum over k of x[m, k] * w[c, k].
// A workgroup of SUBGROUPS_M x SUBGROUPS_N subgroups makes TILE_M rows x TILE_N channels. A subgroup makes FRAGMENTS_M
// x FRAGMENTS_N matrices of sums, which stay in the unit's registers.
// k counts vectors of 16 int8. A step loads STEP of them to workgroup memory; the loads of the next step are issued
// before the products of this one. If a step has fewer vectors of weights than there are threads, the first LANES_W
// threads load one each.
// A row in workgroup memory is one vector longer than its contents, so that loads of the units do not always use the
// same memory banks (447 TOPS on an H200, without it 282).
// Sums in a unit's registers cannot be read. For the epilogue they are written to the same workgroup memory, a row of
// matrices at a time.
// Loops are unrolled by the linker, since an array of matrices that a loop indexes leaves registers (69 TOPS instead of
// 480). The operations of the units are an experimental extension whose names change, yet they are written in the loops
// themselves. It takes two to four times as long to call them in functions, to use the built-in subgroup index, or to
// compute an index by `select`: indices are only quotients of the thread's index by constants.
// Residuals and addends are read before the loop over k if EARLY is 1, else after it (gemm.reads_residual_early).
// Weights are in order (column tile, step, channel, vector of k). Rows may be divided into phases, as in gemm.wgsl.
// A weight of 8 bits is one int8 and its channel one column of the product (PARTS = 1). A weight of 4 bits becomes two
// int8 when a step is stored to workgroup memory, and its channel two columns (PARTS = 2).
// Open:
//   UNIT_M, UNIT_N, LANES, SUBGROUPS_M, SUBGROUPS_N, FRAGMENTS_M, FRAGMENTS_N, STEP, HALVES, PARTS, EARLY: the tile
//   Row, RowVector, row_of, k_offset_of, load_x, phase_of, steps_of, pixel_of, half_vector, start_half, acc_of, real_acc:
//     as in gemm
//   UnitWeights, unit_weights(at: u32, channel: u32, k: u32) -> UnitWeights, unit_column(channel: u32, part: u32) -> u32,
//     unit_vector(w: UnitWeights, part: u32, v: u32) -> vec4<u32>, unit_sum(at: u32) -> vec4<i32>:
//     unit_weights_8, unit_weights_4
// Uses quad, stages, subgroup_matrix.

// On GPUs it is fastest to read nothing where a tap is outside of the image.
const BRANCHES = true;
const TILE_COLUMNS = UNIT_N * FRAGMENTS_N * SUBGROUPS_N;
const TILE_N = TILE_COLUMNS / PARTS;
// Rows of x in a tile. A row of int16 is two rows of the product, of its high and of its low halves, which are
// UNIT_ROWS rows apart.
const TILE_ROWS = TILE_M / HALVES;
const UNIT_ROWS = UNIT_M / HALVES;
const LOADS_X = STEP * TILE_ROWS / THREADS;
// A load of weights brings PARTS vectors of k of one channel.
const STEP_W = STEP / PARTS;
const LOADS_W = max(1u, STEP_W * TILE_N / THREADS);
const LANES_W = min(THREADS, STEP_W * TILE_N);
// OWN_N and QUADS: channels and channel quads of a subgroup. SUMS_ROW: vectors in a row of its sums, a vector for each
// quad of columns and two of padding.
const OWN_N = UNIT_N * FRAGMENTS_N / PARTS;
const QUADS = OWN_N / 4u;
const SUMS_ROW = QUADS * PARTS + 2u;
const ROWS_AT_ONCE = LANES / QUADS;
const ROUNDS = UNIT_ROWS / ROWS_AT_ONCE;

var<workgroup> staged: array<vec4<u32>, max((TILE_M + TILE_COLUMNS) * ROW, SUBGROUPS_M * SUBGROUPS_N * UNIT_M * SUMS_ROW)>;

@compute @workgroup_size(THREADS)
fn main(@builtin(local_invocation_index) local: u32,
        @builtin(workgroup_id) group: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>) {
  let column_tiles = (params.quads + TILE_N / 4u - 1u) / (TILE_N / 4u);
  let index = group.y * groups.x + group.x;
  let first_m = index / column_tiles * TILE_ROWS;
  if (first_m >= params.rows) { return; }
  let column_tile = index % column_tiles;
  let phase = phase_of(first_m);
  let subgroup = local / LANES;
  let lane = local % LANES;
  let first_row = subgroup / SUBGROUPS_N * (UNIT_M * FRAGMENTS_M);
  let first_column = subgroup % SUBGROUPS_N * (UNIT_N * FRAGMENTS_N);

  let k_lane = local % STEP;
  let m_lane = local / STEP;
  let m_staged = m_lane / UNIT_ROWS * UNIT_M + m_lane % UNIT_ROWS;
  var rows: array<Row, LOADS_X>;
  for (var i = 0u; i < LOADS_X; i++) {
    rows[i] = row_of(min(first_m + m_lane + i * (THREADS / STEP), params.rows - 1u));
  }
  let steps = steps_of(phase);
  var k = phase * params.steps * STEP;
  var w_at = (phase * column_tiles + column_tile) * params.steps * (STEP_W * TILE_N) + local % LANES_W;
  var next_x: array<RowVector, LOADS_X>;
  var next_w: array<UnitWeights, LOADS_W>;
  let k_offset = k_offset_of(k + k_lane);
  for (var i = 0u; i < LOADS_X; i++) { next_x[i] = load_x(rows[i], k_offset); }
  for (var i = 0u; i < LOADS_W; i++) {
    let at = local % LANES_W + i * THREADS;
    next_w[i] = unit_weights(w_at + i * THREADS, column_tile * TILE_N + at / STEP_W, k + at % STEP_W * PARTS);
  }

  // A lane computes the results of one channel quad in every ROWS_AT_ONCE-th row.
  let quad = column_tile * (TILE_N / 4u) + first_column / PARTS / 4u + lane % QUADS;
  let lane_m = first_m + first_row / HALVES + lane / QUADS;
  var others: Others;
  if (EARLY == 1u) { others = others_of(lane_m, quad); }
  var sums: array<array<Sums, FRAGMENTS_N>, FRAGMENTS_M>;
  for (var step = 0u; step < steps; step++) {
    for (var i = 0u; i < LOADS_X; i++) {
      for (var h = 0u; h < HALVES; h++) {
        staged[(m_staged + i * (THREADS / STEP) * HALVES + h * UNIT_ROWS) * ROW + k_lane] = half_vector(next_x[i], h);
      }
    }
    for (var i = 0u; i < LOADS_W; i++) {
      let at = local + i * THREADS;
      if (LANES_W == THREADS || local < LANES_W) {
        for (var p = 0u; p < PARTS; p++) {
          let at_row = (TILE_M + unit_column(at / STEP_W, p)) * ROW + at % STEP_W * PARTS;
          for (var v = 0u; v < PARTS; v++) { staged[at_row + v] = unit_vector(next_w[i], p, v); }
        }
      }
    }
    workgroupBarrier();
    if (step + 1u < steps) {
      k += STEP;
      w_at += STEP_W * TILE_N;
      let k_offset = k_offset_of(k + k_lane);
      for (var i = 0u; i < LOADS_X; i++) { next_x[i] = load_x(rows[i], k_offset); }
      for (var i = 0u; i < LOADS_W; i++) {
        let at = local % LANES_W + i * THREADS;
        next_w[i] = unit_weights(w_at + i * THREADS, column_tile * TILE_N + at / STEP_W, k + at % STEP_W * PARTS);
      }
    }
    for (var s = 0u; s < PRODUCTS; s++) {
      var a: array<Left, FRAGMENTS_M>;
      for (var i = 0u; i < FRAGMENTS_M; i++) {
        a[i] = subgroupMatrixLoad<Left, row_major>(&staged, (first_row + i * UNIT_M) * ROW + s * UNIT_VECTORS, ROW);
      }
      for (var j = 0u; j < FRAGMENTS_N; j++) {
        let at = (TILE_M + first_column + j * UNIT_N) * ROW + s * UNIT_VECTORS;
        let b = subgroupMatrixLoad<Right, col_major>(&staged, at, ROW);
        for (var i = 0u; i < FRAGMENTS_M; i++) { sums[i][j] = subgroupMatrixMultiplyAccumulate(a[i], b, sums[i][j]); }
      }
    }
    workgroupBarrier();
  }

  if (EARLY == 0u) { others = others_of(lane_m, quad); }
  let own = subgroup * (UNIT_M * SUMS_ROW);
  let channel = channel_quad(quad);
  let start = start_half(phase * params.quads + quad, 0u);
  let last_start = start_half(phase * params.quads + quad, HALVES - 1u);
  let offsets = quad_offsets(quad);
  for (var i = 0u; i < FRAGMENTS_M; i++) {
    var pixels: array<u32, ROUNDS>;
    for (var e = 0u; e < ROUNDS; e++) { pixels[e] = pixel_of(lane_m + i * UNIT_ROWS + e * ROWS_AT_ONCE); }
    for (var j = 0u; j < FRAGMENTS_N; j++) {
      subgroupMatrixStore<row_major>(&staged, own + j * (UNIT_N / 4u), sums[i][j], SUMS_ROW);
    }
    workgroupBarrier();
    for (var e = 0u; e < ROUNDS; e++) {
      let at = own + (lane / QUADS + e * ROWS_AT_ONCE) * SUMS_ROW + lane % QUADS;
      let acc = acc_of(start + unit_sum(at), last_start + unit_sum(at + (HALVES - 1u) * UNIT_ROWS * SUMS_ROW));
      let value = after_rounding(quad_value(real_acc(acc), channel, others[i][e].residual), others[i][e].addend);
      if (pixels[e] < params.rows && quad < params.quads) { store_result(value, pixels[e], quad, offsets); }
    }
    workgroupBarrier();
  }
}

// The words of other operands for a lane's quads. They are read without a condition, so that the loads overlap.
struct OtherWords { residual: ResidualWord, addend: u32 }
alias Others = array<array<OtherWords, ROUNDS>, FRAGMENTS_M>;

fn others_of(m: u32, quad: u32) -> Others {
  var found: Others;
  for (var i = 0u; i < FRAGMENTS_M; i++) {
    for (var e = 0u; e < ROUNDS; e++) {
      let pixel = min(pixel_of(m + i * UNIT_ROWS + e * ROWS_AT_ONCE), params.rows - 1u);
      let known = min(quad, params.quads - 1u);
      found[i][e] = OtherWords(residual_of(pixel, known), addend_of(pixel, known));
    }
  }
  return found;
}
