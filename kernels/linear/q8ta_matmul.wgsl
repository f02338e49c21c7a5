// A product of two activations whose rows both lie along the sum. Batch dimensions of extent 1 are broadcast. With zero
// points, sum (a - az)(b - bz) = sum ab - az sum b - bz sum a + depth az bz. Lanes past the depth have no promised
// value: they are cleared.
// Uses halves_int16.

// A word with the byte 1 in the lanes of elements k to k + 3 that lie before `depth`.
fn ones_before(k: u32, depth: u32) -> u32 { return 0x01010101u >> (8u * (4u - min(depth - k, 4u))); }

fn whole_word(word: u32, half: u32) -> u32 { return word; }
fn half_of_word(word: vec2<u32>, half: u32) -> u32 {
  return even_bytes(word >> vec2<u32>(8u - 8u * half)) ^ (half * 0x80808080u);
}

fn partial_result(p: vec4<u32>, first: vec4<u32>) -> Acc {
  let depth = params.a_dims.w;
  let a_batch = min(p.xy, params.a_dims.xy - 1u);
  let b_batch = min(p.xy, params.b_dims.xy - 1u);
  let rows = min(p.w + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(params.b_dims.z - 1u));
  var ab: Products;
  var of_row: array<i32, HALVES_A>;
  var of_columns: array<vec4<i32>, HALVES_B>;
  for (var k = 0u; k < depth; k += 4u) {
    let ones = ones_before(k, depth);
    let word = a_word(vec4<u32>(a_batch, p.z, k));
    let w0 = b_word(vec4<u32>(b_batch, rows.x, k));
    let w1 = b_word(vec4<u32>(b_batch, rows.y, k));
    let w2 = b_word(vec4<u32>(b_batch, rows.z, k));
    let w3 = b_word(vec4<u32>(b_batch, rows.w, k));
    var left: array<u32, HALVES_A>;
    for (var ha = 0u; ha < HALVES_A; ha++) {
      left[ha] = a_word_half(word, ha) & (ones * 0xffu);
      of_row[ha] += dot4(left[ha], ones);
    }
    for (var hb = 0u; hb < HALVES_B; hb++) {
      let b0 = b_word_half(w0, hb);
      let b1 = b_word_half(w1, hb);
      let b2 = b_word_half(w2, hb);
      let b3 = b_word_half(w3, hb);
      of_columns[hb] += vec4<i32>(dot4(ones, b0), dot4(ones, b1), dot4(ones, b2), dot4(ones, b3));
      for (var ha = 0u; ha < HALVES_A; ha++) {
        let v = left[ha];
        ab[ha * HALVES_B + hb] += vec4<i32>(dot4(v, b0), dot4(v, b1), dot4(v, b2), dot4(v, b3));
      }
    }
  }
  for (var i = 0u; i < HALVES_PAIRED; i++) {
    ab[i] = without_zeros(ab[i], of_row[i / HALVES_B], of_columns[i % HALVES_B], a_zero(i / HALVES_B), b_zero(i % HALVES_B));
  }
  return real_products(ab);
}

fn without_zeros(ab: vec4<i32>, a: i32, b: vec4<i32>, a_zero: i32, b_zero: i32) -> vec4<i32> {
  return ab - a_zero * b - b_zero * a + i32(params.a_dims.w) * a_zero * b_zero;
}

fn a_zero(half: u32) -> i32 { return select(params.a_zero, params.a_low_zero, half == 1u); }
fn b_zero(half: u32) -> i32 { return select(params.b_zero, params.b_low_zero, half == 1u); }

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

// All columns have one multiplier and no bias.
fn magic_product_numbers(quad: u32) -> MagicNumbers {
  return MagicNumbers(vec4<f32>(params.multiplier), vec4<i32>(params.offset), vec4<f32>(params.low), vec4<f32>(params.high),
              vec4<f32>(params.magic));
}

fn product_numbers(quad: u32) -> Numbers { return Numbers(vec4<f32>(params.multiplier), vec4<i32>(0)); }

alias Acc = vec4<f32>;

fn real_acc(acc: Acc) -> vec4<f32> { return acc; }
