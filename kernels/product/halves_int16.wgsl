// A row of int16 becomes two rows of int8, its high and its low halves, which are multiplied by the same weights
// (halves.py). x = 256 * high + low + 128: 128 is subtracted from the low half.

struct RowVector { a: vec4<u32>, b: vec4<u32> }

fn vector_at(at: u32) -> RowVector { return RowVector(x[2u * at], x[2u * at + 1u]); }

fn vector_of(a: vec2<u32>, b: vec2<u32>, c: vec2<u32>, d: vec2<u32>) -> RowVector {
  return RowVector(vec4<u32>(a, b), vec4<u32>(c, d));
}

fn zero_word() -> vec2<u32> { return params.x_zeros.xy; }

fn zero_vector() -> RowVector { return RowVector(params.x_zeros, params.x_zeros); }

fn zeros_where(v: RowVector, outside: bool) -> RowVector {
  return RowVector(select(v.a, params.x_zeros, outside), select(v.b, params.x_zeros, outside));
}

fn half_vector(v: RowVector, half: u32) -> vec4<u32> {
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

// --- sums of four channels: one for each half ---

struct Acc { high: vec4<i32>, low: vec4<i32> }

fn acc_of(high: vec4<i32>, low: vec4<i32>) -> Acc { return Acc(high, low); }

// 256 * high + low as float32, rounded once: both terms of the float addition are exact, since sums are below 2^39.
fn real_halves(high: vec4<i32>, low: vec4<i32>) -> vec4<f32> {
  let middle = (high & vec4<i32>(255)) + (low >> vec4<u32>(8u));
  return real_of_16(high >> vec4<u32>(8u), middle, low);
}

fn real_acc(acc: Acc) -> vec4<f32> { return real_halves(acc.high, acc.low); }

// 65536 * high + 256 * middle + the last byte of low. No sum reaches the bounds of the clamp. Its purpose is that
// compilers cannot reorder this addition and that of a bias after it.
fn real_of_16(high: vec4<i32>, middle: vec4<i32>, low: vec4<i32>) -> vec4<f32> {
  let rest = ((middle & vec4<i32>(255)) << vec4<u32>(8u)) | (low & vec4<i32>(255));
  let sum = vec4<f32>(high + (middle >> vec4<u32>(8u))) * 65536.0 + vec4<f32>(rest);
  return clamp(sum, vec4<f32>(-LARGEST_SUM), vec4<f32>(LARGEST_SUM));
}

const LARGEST_SUM = 0x1p50;

fn merge(a: Acc, b: Acc) -> Acc { return Acc(a.high + b.high, a.low + b.low); }

// For int16, `correction` has the sums of the weights.
fn start_half(quad: u32, half: u32) -> vec4<i32> {
  return correction[quad] * select(-params.high_zero, -params.low_zero, half == 1u);
}

fn start_acc(quad: u32) -> Acc { return Acc(start_half(quad, 0u), start_half(quad, 1u)); }

fn add_words(acc: Acc, a: vec2<u32>, b: vec2<u32>, c: vec2<u32>, d: vec2<u32>, w: vec4<u32>) -> Acc {
  return Acc(
    acc.high + vec4<i32>(dot4(high_bytes(a), w.x), dot4(high_bytes(b), w.y), dot4(high_bytes(c), w.z), dot4(high_bytes(d), w.w)),
    acc.low + vec4<i32>(dot4(low_bytes(a), w.x), dot4(low_bytes(b), w.y), dot4(low_bytes(c), w.z), dot4(low_bytes(d), w.w)));
}

fn add_lanes(acc: Acc, word: vec2<u32>, weights: vec4<i32>) -> Acc {
  let v = unpack4xI16(word);
  return Acc(acc.high + (v >> vec4<u32>(8u)) * weights, acc.low + ((v & vec4<i32>(255)) - 128) * weights);
}

fn add_word(acc: Acc, word: vec2<u32>, w: vec4<u32>, factor: vec4<i32>) -> Acc {
  return Acc(acc.high + dot_words(high_bytes(word), w) * factor, acc.low + dot_words(low_bytes(word), w) * factor);
}
