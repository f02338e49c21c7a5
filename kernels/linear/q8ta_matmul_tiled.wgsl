// q8ta_matmul.wgsl, tiled twice as in gemm.wgsl, whose b is a constant. A workgroup makes TILE_M rows x TILE_N columns of
// one matrix. k counts vectors of 16 int8. A step loads STEP of them to workgroup memory; the loads of the next step are
// issued before the products of this one. Past the depth both operands count as 0.
// The thread that loads a row also sums its elements, which is needed for the zero points. A row of int16 is two rows
// of int8, of its high and of its low halves (HALVES_A, HALVES_B).
// Open:
//   THREADS_M, THREADS_N, ROWS, QUADS, STEP, HALVES_A, HALVES_B: the tile
//   AVector, BVector, a_vector(row: u32, k: u32) -> AVector, b_vector(row: u32, k: u32) -> BVector,
//     a_half(v: AVector, half: u32) -> vec4<u32>, b_half(v: BVector, half: u32) -> vec4<u32>,
//     real_products(sums: Products) -> vec4<f32>: functions of q8ta_matmul
// Uses gemm, halves_int16, q8ta_matmul, quad, stages.

const THREADS = THREADS_M * THREADS_N;
const TILE_M = THREADS_M * ROWS;
const TILE_N = THREADS_N * QUADS * 4u;
const OWN_ROWS = ROWS / HALVES_A;
const OWN_QUADS = QUADS / HALVES_B;
const ONES = 0x01010101u;

// Rows and columns of the result that a workgroup makes, the loads of a thread in a step, and the sums of what it loads.
const RESULT_M = TILE_M / HALVES_A;
const RESULT_N = TILE_N / HALVES_B;
const LOADS_A = STEP * RESULT_M / THREADS;
const LOADS_B = STEP * RESULT_N / THREADS;

var<workgroup> a_tile: array<array<array<vec4<u32>, THREADS_M>, ROWS>, STEP>;
var<workgroup> b_tile: array<array<array<vec4<u32>, THREADS_N>, QUADS * 4u>, STEP>;
var<workgroup> a_sums: array<array<i32, STEP>, TILE_M>;
var<workgroup> b_sums: array<array<i32, STEP>, TILE_N>;

@compute @workgroup_size(THREADS)
fn main(@builtin(local_invocation_index) t: u32,
        @builtin(workgroup_id) group: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>) {
  let rows = params.y_dims.z;
  let tile = tile_of(group.y * groups.x + group.x);
  if (tile.batch >= params.y_dims.x * params.y_dims.y) { return; }
  let tm = t / THREADS_N;
  let tn = t % THREADS_N;

  let k_lane = t % STEP;
  let lane_row = t / STEP;
  var a_rows: array<u32, LOADS_A>;
  for (var i = 0u; i < LOADS_A; i++) { a_rows[i] = row_of_a(tile.batch, tile.m + lane_row + i * (THREADS / STEP)); }
  var b_rows: array<u32, LOADS_B>;
  for (var i = 0u; i < LOADS_B; i++) { b_rows[i] = row_of_b(tile.batch, tile.n + lane_row + i * (THREADS / STEP)); }
  var next_a: array<AVector, LOADS_A>;
  var next_b: array<BVector, LOADS_B>;
  for (var i = 0u; i < LOADS_A; i++) { next_a[i] = a_vector(a_rows[i], k_lane); }
  for (var i = 0u; i < LOADS_B; i++) { next_b[i] = b_vector(b_rows[i], k_lane); }

  var acc: array<vec4<i32>, ROWS * QUADS>;
  var a_parts: array<i32, LOADS_A * HALVES_A>;
  var b_parts: array<i32, LOADS_B * HALVES_B>;
  for (var step = 0u; step < params.steps; step++) {
    let known = before_depth(step * STEP + k_lane);
    for (var i = 0u; i < LOADS_A; i++) {
      let m = lane_row + i * (THREADS / STEP);
      for (var h = 0u; h < HALVES_A; h++) {
        let v = a_half(next_a[i], h) & known;
        a_tile[k_lane][h * OWN_ROWS + m / THREADS_M][swizzled(m % THREADS_M, k_lane)] = v;
        a_parts[i * HALVES_A + h] += sum_of_bytes(v);
      }
    }
    for (var i = 0u; i < LOADS_B; i++) {
      let n = lane_row + i * (THREADS / STEP);
      for (var h = 0u; h < HALVES_B; h++) {
        let v = b_half(next_b[i], h) & known;
        b_tile[k_lane][(h * OWN_QUADS + n / (4u * THREADS_N)) * 4u + n % 4u][n / 4u % THREADS_N] = v;
        b_parts[i * HALVES_B + h] += sum_of_bytes(v);
      }
    }
    workgroupBarrier();
    if (step + 1u < params.steps) {
      let k = (step + 1u) * STEP + k_lane;
      for (var i = 0u; i < LOADS_A; i++) { next_a[i] = a_vector(a_rows[i], k); }
      for (var i = 0u; i < LOADS_B; i++) { next_b[i] = b_vector(b_rows[i], k); }
    }
    for (var s = 0u; s < STEP; s++) {
      var row: array<vec4<u32>, ROWS>;
      for (var i = 0u; i < ROWS; i++) { row[i] = a_tile[s][i][swizzled(tm, s)]; }
      for (var q = 0u; q < QUADS; q++) {
        let b0 = b_tile[s][q * 4u][tn];
        let b1 = b_tile[s][q * 4u + 1u][tn];
        let b2 = b_tile[s][q * 4u + 2u][tn];
        let b3 = b_tile[s][q * 4u + 3u][tn];
        for (var i = 0u; i < ROWS; i++) { acc[i * QUADS + q] = dot_quad(acc[i * QUADS + q], row[i], b0, b1, b2, b3); }
      }
    }
    workgroupBarrier();
  }

  for (var i = 0u; i < LOADS_A * HALVES_A; i++) {
    a_sums[i % HALVES_A * RESULT_M + lane_row + i / HALVES_A * (THREADS / STEP)][k_lane] = a_parts[i];
  }
  for (var i = 0u; i < LOADS_B * HALVES_B; i++) {
    b_sums[i % HALVES_B * RESULT_N + lane_row + i / HALVES_B * (THREADS / STEP)][k_lane] = b_parts[i];
  }
  workgroupBarrier();
  // Two loops with small bodies, which compilers unroll: see kernels/epilogue/quad.wgsl.
  for (var q = 0u; q < OWN_QUADS; q++) {
    let quad = tile.n / 4u + q * THREADS_N + tn;
    var of_columns: array<vec4<i32>, HALVES_B>;
    for (var h = 0u; h < HALVES_B; h++) { of_columns[h] = sums_of_columns(h * RESULT_N + (q * THREADS_N + tn) * 4u); }
    let channel = channel_quad(quad);
    for (var i = 0u; i < OWN_ROWS; i++) {
      var sums: Products;
      for (var p = 0u; p < HALVES_PAIRED; p++) {
        let ha = p / HALVES_B;
        let hb = p % HALVES_B;
        let ab = acc[(ha * OWN_ROWS + i) * QUADS + hb * OWN_QUADS + q];
        let of_row = sum_of_row(a_sums[ha * RESULT_M + tm + i * THREADS_M]);
        sums[p] = without_zeros(ab, of_row, of_columns[hb], a_zero(ha), b_zero(hb));
      }
      let residual = residual_of(tile.batch * rows + tile.m + tm + i * THREADS_M, quad);
      acc[i * QUADS + q] = quad_value(real_products(sums), channel, residual);
    }
  }
  for (var q = 0u; q < OWN_QUADS; q++) {
    let quad = tile.n / 4u + q * THREADS_N + tn;
    let offsets = quad_offsets(quad);
    for (var i = 0u; i < OWN_ROWS; i++) {
      let m = tile.m + tm + i * THREADS_M;
      if (m < rows && quad < params.quads) { store_value(acc[i * QUADS + q], tile.batch * rows + m, quad, offsets); }
    }
  }
}

// The tile of a workgroup: its matrix, and its first row and column there.
struct ResultTile { batch: u32, m: u32, n: u32 }

fn tile_of(index: u32) -> ResultTile {
  let across = (params.y_dims.w + RESULT_N - 1u) / RESULT_N;
  let down = (params.y_dims.z + RESULT_M - 1u) / RESULT_M;
  return ResultTile(index / (down * across), index / across % down * RESULT_M, index % across * RESULT_N);
}

// The first words of row m of a and of column n, a row of b. Past the end they are those of the last one.
fn row_of_a(batch: u32, m: u32) -> u32 {
  return matrix_of(batch, params.a_dims) + min(m, params.y_dims.z - 1u) * quads(params.a_dims.w);
}

fn row_of_b(batch: u32, n: u32) -> u32 {
  return matrix_of(batch, params.b_dims) + min(n, params.y_dims.w - 1u) * quads(params.a_dims.w);
}

// The first word of a batch's matrix. Batch dimensions of extent 1 are broadcast.
fn matrix_of(batch: u32, dims: vec4<u32>) -> u32 {
  let outer = min(batch / params.y_dims.y, dims.x - 1u);
  let inner = min(batch % params.y_dims.y, dims.y - 1u);
  return (outer * dims.y + inner) * dims.z * quads(dims.w);
}

// A mask with all bits of the elements of vector k of a row that lie before the depth.
fn before_depth(k: u32) -> vec4<u32> {
  let left = vec4<i32>(i32(params.a_dims.w) - i32(16u * k)) - vec4<i32>(0, 4, 8, 12);
  let bits = vec4<u32>(0xffffffffu) >> vec4<u32>(8 * (4 - clamp(left, vec4<i32>(1), vec4<i32>(4))));
  return select(bits, vec4<u32>(0u), left <= vec4<i32>(0));
}

// Vector k of a row of an int8 operand, or of an int16 one (RowVector and half_vector of halves_int16).
alias Int8Vector = vec4<u32>;

fn a_int8(row: u32, k: u32) -> vec4<u32> {
  let at = row + 4u * k;
  return vec4<u32>(a[at], a[at + 1u], a[at + 2u], a[at + 3u]);
}

fn b_int8(row: u32, k: u32) -> vec4<u32> {
  let at = row + 4u * k;
  return vec4<u32>(b[at], b[at + 1u], b[at + 2u], b[at + 3u]);
}

fn whole_vector(v: vec4<u32>, half: u32) -> vec4<u32> { return v; }

fn a_int16(row: u32, k: u32) -> RowVector {
  let at = row + 4u * k;
  return RowVector(vec4<u32>(a[at], a[at + 1u]), vec4<u32>(a[at + 2u], a[at + 3u]));
}

fn b_int16(row: u32, k: u32) -> RowVector {
  let at = row + 4u * k;
  return RowVector(vec4<u32>(b[at], b[at + 1u]), vec4<u32>(b[at + 2u], b[at + 3u]));
}

fn sum_of_bytes(v: vec4<u32>) -> i32 {
  return dot4(v.x, ONES) + dot4(v.y, ONES) + dot4(v.z, ONES) + dot4(v.w, ONES);
}

fn sum_of_row(parts: array<i32, STEP>) -> i32 {
  var sum = 0;
  for (var s = 0u; s < STEP; s++) { sum += parts[s]; }
  return sum;
}

fn sums_of_columns(at: u32) -> vec4<i32> {
  return vec4<i32>(sum_of_row(b_sums[at]), sum_of_row(b_sums[at + 1u]), sum_of_row(b_sums[at + 2u]), sum_of_row(b_sums[at + 3u]));
}
