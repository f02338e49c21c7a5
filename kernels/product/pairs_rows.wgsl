// Functions that the products of two activations share. Both operands are batches of rows along k.
// Uses halves_int16.

const ONES = 0x01010101u;

// Rows and columns of the result that a workgroup makes, the loads of a thread in a step, and the sums of what it loads.
const RESULT_M = TILE_M / HALVES_A;
const RESULT_N = TILE_N / HALVES_B;
const LOADS_A = STEP * RESULT_M / THREADS;
const LOADS_B = STEP * RESULT_N / THREADS;

var<workgroup> a_sums: array<array<i32, STEP>, TILE_M>;
var<workgroup> b_sums: array<array<i32, STEP>, TILE_N>;

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

// The sums of four columns.
fn sums_of_columns(at: u32) -> vec4<i32> {
  return vec4<i32>(sum_of_row(b_sums[at]), sum_of_row(b_sums[at + 1u]), sum_of_row(b_sums[at + 2u]), sum_of_row(b_sums[at + 3u]));
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

fn a_words(row: u32, k: u32) -> vec4<u32> {
  let at = row + 4u * k;
  return vec4<u32>(a[at], a[at + 1u], a[at + 2u], a[at + 3u]) & before_depth(k);
}

fn b_words(row: u32, k: u32) -> vec4<u32> {
  let at = row + 4u * k;
  return vec4<u32>(b[at], b[at + 1u], b[at + 2u], b[at + 3u]) & before_depth(k);
}

// The same for rows that are whole vectors.
fn a_whole(row: u32, k: u32) -> vec4<u32> { return a[row / 4u + k] & before_depth(k); }
fn b_whole(row: u32, k: u32) -> vec4<u32> { return b[row / 4u + k] & before_depth(k); }

// Half 0 or 1 of a loaded vector, for int16 operands (halves_int16).
alias AVector = vec4<u32>;
alias BVector = vec4<u32>;

fn a_half(v: AVector, half: u32, k: u32) -> vec4<u32> { return v; }
fn b_half(v: BVector, half: u32, k: u32) -> vec4<u32> { return v; }
fn half_before_depth(v: RowVector, half: u32, k: u32) -> vec4<u32> { return half_vector(v, half) & before_depth(k); }

fn a_int16_words(row: u32, k: u32) -> RowVector {
  let at = row + 4u * k;
  return RowVector(vec4<u32>(a[at], a[at + 1u]), vec4<u32>(a[at + 2u], a[at + 3u]));
}

fn b_int16_words(row: u32, k: u32) -> RowVector {
  let at = row + 4u * k;
  return RowVector(vec4<u32>(b[at], b[at + 1u]), vec4<u32>(b[at + 2u], b[at + 3u]));
}

fn a_int16_whole(row: u32, k: u32) -> RowVector { return RowVector(a[row / 2u + 2u * k], a[row / 2u + 2u * k + 1u]); }
fn b_int16_whole(row: u32, k: u32) -> RowVector { return RowVector(b[row / 2u + 2u * k], b[row / 2u + 2u * k + 1u]); }

fn sum_of_bytes(v: vec4<u32>) -> i32 {
  return dot4(v.x, ONES) + dot4(v.y, ONES) + dot4(v.z, ONES) + dot4(v.w, ONES);
}

fn sum_of_row(parts: array<i32, STEP>) -> i32 {
  var sum = 0;
  for (var s = 0u; s < STEP; s++) { sum += parts[s]; }
  return sum;
}

// With zero points, sum (a - az)(b - bz) = sum ab - az sum b - bz sum a + depth az bz.
fn without_zeros(ab: vec4<i32>, a: i32, b: vec4<i32>, a_zero: i32, b_zero: i32) -> vec4<i32> {
  return ab - a_zero * b - b_zero * a + i32(params.a_dims.w) * a_zero * b_zero;
}

// The sums of every half of a with every half of b. Of two int16 operands they are: high by high, high by low, low by
// high, low by low (halves_int16).
const HALVES_PAIRED = HALVES_A * HALVES_B;
alias Products = array<vec4<i32>, HALVES_PAIRED>;

fn real_product(sums: Products) -> vec4<f32> { return vec4<f32>(sums[0]); }
fn real_of_two(sums: Products) -> vec4<f32> { return real_halves(sums[0], sums[1]); }

fn real_of_four(sums: Products) -> vec4<f32> {
  let bytes = (sums[1] & vec4<i32>(255)) + (sums[2] & vec4<i32>(255)) + (sums[3] >> vec4<u32>(8u));
  return real_of_16(sums[0] + (sums[1] >> vec4<u32>(8u)) + (sums[2] >> vec4<u32>(8u)), bytes, sums[3]);
}

fn zero_of_a(half: u32) -> i32 { return params.a_zero; }
fn zero_of_b(half: u32) -> i32 { return params.b_zero; }
fn zero_of_a_half(half: u32) -> i32 { return select(params.a_zero, params.a_low_zero, half == 1u); }
fn zero_of_b_half(half: u32) -> i32 { return select(params.b_zero, params.b_low_zero, half == 1u); }

// All columns have one multiplier and no bias.
fn magic_product_numbers(quad: u32) -> MagicNumbers {
  return MagicNumbers(vec4<f32>(params.multiplier), vec4<i32>(params.offset), vec4<f32>(params.low), vec4<f32>(params.high),
              vec4<f32>(params.magic));
}

fn product_numbers(quad: u32) -> Numbers { return Numbers(vec4<f32>(params.multiplier), vec4<i32>(0)); }
