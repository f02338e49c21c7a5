// Rows of int8, which are multiplied as they are, and sums of four channels. halves_int16 has the same names for rows of
// int16.

// --- vectors of 16 elements of a row: from a buffer of vectors or from four words, of zero points, and one half of them ---

alias RowVector = vec4<u32>;

fn vector_at(at: u32) -> RowVector { return x[at]; }
fn vector_of(a: u32, b: u32, c: u32, d: u32) -> RowVector { return vec4<u32>(a, b, c, d); }
fn zero_word() -> u32 { return params.x_zeros.x; }
fn zero_vector() -> RowVector { return params.x_zeros; }
fn zeros_where(v: RowVector, outside: bool) -> RowVector { return select(v, params.x_zeros, outside); }
fn half_vector(v: RowVector, half: u32) -> vec4<u32> { return v; }

// --- sums of four channels ---

alias Acc = vec4<i32>;

fn acc_of(high: vec4<i32>, low: vec4<i32>) -> Acc { return high; }
fn real_acc(acc: Acc) -> vec4<f32> { return vec4<f32>(acc); }
fn merge(a: Acc, b: Acc) -> Acc { return a + b; }
fn start_acc(quad: u32) -> Acc { return -correction[quad]; }
fn start_half(quad: u32, half: u32) -> vec4<i32> { return start_acc(quad); }

// Products of a word of x for each of four channels, of one word for all four, and of each lane of a word with the
// weight of that lane.
fn add_words(acc: Acc, a: u32, b: u32, c: u32, d: u32, w: vec4<u32>) -> Acc {
  return acc + vec4<i32>(dot4(a, w.x), dot4(b, w.y), dot4(c, w.z), dot4(d, w.w));
}
fn add_word(acc: Acc, word: u32, w: vec4<u32>, factor: vec4<i32>) -> Acc { return acc + dot_words(word, w) * factor; }
fn add_lanes(acc: Acc, word: u32, weights: vec4<i32>) -> Acc { return acc + unpack4xI8(word) * weights; }
