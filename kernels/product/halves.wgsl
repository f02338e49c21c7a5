// Rows of a matrix product. A row of int8 is multiplied as it is. A row of int16 becomes two rows of int8, its high and
// its low halves, which are multiplied by the same weights (kernels/product/halves.py). x = 256 * high + low + 128: 128
// is subtracted from the low half. HALVES is 1 or 2.

// --- vectors of 16 elements of a row: from a buffer of vectors or from four words, of zero points, and one half of them ---

alias RowVector = vec4<u32>;

fn vector_at(at: u32) -> RowVector { return x[at]; }
fn vector_of(a: u32, b: u32, c: u32, d: u32) -> RowVector { return vec4<u32>(a, b, c, d); }
fn zero_word() -> u32 { return params.x_zeros.x; }
fn zero_vector() -> RowVector { return params.x_zeros; }
fn zeros_where(v: RowVector, outside: bool) -> RowVector { return select(v, params.x_zeros, outside); }
fn half_vector(v: RowVector, half: u32) -> vec4<u32> { return v; }

// The first element of a word, and a word of four such elements.
fn first_lane(word: u32) -> u32 { return word & 0xffu; }
fn word_of(a: u32, b: u32, c: u32, d: u32) -> u32 { return a | (b << 8u) | (c << 16u) | (d << 24u); }

struct RowVectorInt16 { a: vec4<u32>, b: vec4<u32> }

fn int16_vector_at(at: u32) -> RowVectorInt16 { return RowVectorInt16(x[2u * at], x[2u * at + 1u]); }

fn int16_vector_of(a: vec2<u32>, b: vec2<u32>, c: vec2<u32>, d: vec2<u32>) -> RowVectorInt16 {
  return RowVectorInt16(vec4<u32>(a, b), vec4<u32>(c, d));
}

fn int16_first_lane(word: vec2<u32>) -> u32 { return word.x & 0xffffu; }

fn int16_word_of(a: u32, b: u32, c: u32, d: u32) -> vec2<u32> { return vec2<u32>(a | (b << 16u), c | (d << 16u)); }

fn int16_zero_word() -> vec2<u32> { return params.x_zeros.xy; }

fn int16_zero_vector() -> RowVectorInt16 { return RowVectorInt16(params.x_zeros, params.x_zeros); }

fn int16_zeros_where(v: RowVectorInt16, outside: bool) -> RowVectorInt16 {
  return RowVectorInt16(select(v.a, params.x_zeros, outside), select(v.b, params.x_zeros, outside));
}

fn half_of_int16(v: RowVectorInt16, half: u32) -> vec4<u32> {
  let shift = vec4<u32>(8u - 8u * half);
  let first = v.a >> shift;
  let last = v.b >> shift;
  return vec4<u32>(even_bytes(first.xy), even_bytes(first.zw), even_bytes(last.xy), even_bytes(last.zw))
    ^ vec4<u32>(half * 0x80808080u);
}

// A word with the first and the third byte of both words.
fn even_bytes(v: vec2<u32>) -> u32 {
  let bytes = v & vec2<u32>(0xff00ffu);
  let pairs = (bytes | (bytes >> vec2<u32>(8u))) & vec2<u32>(0xffffu);
  return pairs.x | (pairs.y << 16u);
}

fn high_bytes(word: vec2<u32>) -> u32 { return even_bytes(word >> vec2<u32>(8u)); }
fn low_bytes(word: vec2<u32>) -> u32 { return even_bytes(word) ^ 0x80808080u; }

// --- accumulators of four channels: one for int8, and one for each half of int16 ---

fn acc_of(high: vec4<i32>, low: vec4<i32>) -> Acc { return high; }
fn start_half(quad: u32, half: u32) -> vec4<i32> { return start_quad(quad); }
fn start_acc(quad: u32) -> Acc { return start_quad(quad); }

// Products of a word of x for each of four channels.
fn add_words(acc: Acc, a: u32, b: u32, c: u32, d: u32, w: vec4<u32>) -> Acc {
  return acc + vec4<i32>(dot4(a, w.x), dot4(b, w.y), dot4(c, w.z), dot4(d, w.w));
}

// Products of each lane of a word of x with the weight of that lane.
fn add_lanes(acc: Acc, word: u32, weights: vec4<i32>) -> Acc { return acc + unpack4xI8(word) * weights; }

struct Halves { high: vec4<i32>, low: vec4<i32> }

fn halves_of(high: vec4<i32>, low: vec4<i32>) -> Halves { return Halves(high, low); }

// 256 * high + low as float32, rounded once: both terms of the float addition are exact, since sums are below 2^39.
fn real_halves(acc: Halves) -> vec4<f32> {
  let middle = (acc.high & vec4<i32>(255)) + (acc.low >> vec4<u32>(8u));
  return real_of_16(acc.high >> vec4<u32>(8u), middle, acc.low);
}

// 65536 * high + 256 * middle + the last byte of low. No sum reaches the bounds of the clamp. Its purpose is that
// compilers cannot reorder this addition and that of a bias after it.
fn real_of_16(high: vec4<i32>, middle: vec4<i32>, low: vec4<i32>) -> vec4<f32> {
  let rest = ((middle & vec4<i32>(255)) << vec4<u32>(8u)) | (low & vec4<i32>(255));
  let sum = vec4<f32>(high + (middle >> vec4<u32>(8u))) * 65536.0 + vec4<f32>(rest);
  return clamp(sum, vec4<f32>(-LARGEST_SUM), vec4<f32>(LARGEST_SUM));
}

const LARGEST_SUM = 0x1p50;

fn merge_halves(a: Halves, b: Halves) -> Halves { return Halves(a.high + b.high, a.low + b.low); }

// For int16, `correction` has the sums of the weights.
fn start_of_int16(quad: u32, half: u32) -> vec4<i32> {
  return correction[quad] * select(-params.high_zero, -params.low_zero, half == 1u);
}

fn start_of_halves(quad: u32) -> Halves { return Halves(start_of_int16(quad, 0u), start_of_int16(quad, 1u)); }

fn add_halves(acc: Halves, a: vec2<u32>, b: vec2<u32>, c: vec2<u32>, d: vec2<u32>, w: vec4<u32>) -> Halves {
  return Halves(
    acc.high + vec4<i32>(dot4(high_bytes(a), w.x), dot4(high_bytes(b), w.y), dot4(high_bytes(c), w.z), dot4(high_bytes(d), w.w)),
    acc.low + vec4<i32>(dot4(low_bytes(a), w.x), dot4(low_bytes(b), w.y), dot4(low_bytes(c), w.z), dot4(low_bytes(d), w.w)));
}

fn add_int16_lanes(acc: Halves, word: vec2<u32>, weights: vec4<i32>) -> Halves {
  let v = unpack4xI16(word);
  return Halves(acc.high + (v >> vec4<u32>(8u)) * weights, acc.low + ((v & vec4<i32>(255)) - 128) * weights);
}

// For windows so small that one accumulator has room for sums of int16.
fn start_in_one(quad: u32) -> vec4<i32> { return correction[quad] * -(256 * params.high_zero + params.low_zero + 128); }
