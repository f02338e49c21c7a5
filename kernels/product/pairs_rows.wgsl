// Functions that the products of two activations share. Both operands are batches of rows along k.

const ONES = 0x01010101u;

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

// Half 0 or 1 of a loaded vector, for int16 operands (kernels/product/halves.wgsl).
alias AVector = vec4<u32>;
alias BVector = vec4<u32>;

fn a_half(v: AVector, half: u32, k: u32) -> vec4<u32> { return v; }
fn b_half(v: BVector, half: u32, k: u32) -> vec4<u32> { return v; }
fn half_before_depth(v: RowVectorInt16, half: u32, k: u32) -> vec4<u32> { return half_of_int16(v, half) & before_depth(k); }

fn a_int16_words(row: u32, k: u32) -> RowVectorInt16 {
  let at = row + 4u * k;
  return RowVectorInt16(vec4<u32>(a[at], a[at + 1u]), vec4<u32>(a[at + 2u], a[at + 3u]));
}

fn b_int16_words(row: u32, k: u32) -> RowVectorInt16 {
  let at = row + 4u * k;
  return RowVectorInt16(vec4<u32>(b[at], b[at + 1u]), vec4<u32>(b[at + 2u], b[at + 3u]));
}

fn a_int16_whole(row: u32, k: u32) -> RowVectorInt16 { return RowVectorInt16(a[row / 2u + 2u * k], a[row / 2u + 2u * k + 1u]); }
fn b_int16_whole(row: u32, k: u32) -> RowVectorInt16 { return RowVectorInt16(b[row / 2u + 2u * k], b[row / 2u + 2u * k + 1u]); }

fn sum_of_bytes(v: vec4<u32>) -> i32 {
  return dot4(v.x, ONES) + dot4(v.y, ONES) + dot4(v.z, ONES) + dot4(v.w, ONES);
}

fn sum_of_row(parts: array<i32, STEP>) -> i32 {
  var sum = 0;
  for (var s = 0u; s < STEP; s++) { sum += parts[s]; }
  return sum;
}
