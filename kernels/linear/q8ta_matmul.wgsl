// A product of two activations whose rows both lie along the sum. Batch dimensions of extent 1 are read at 0. With zero
// points, sum (a - az)(b - bz) = sum ab - az sum b - bz sum a + depth az bz; lanes past the depth hold no promised value and
// count as 0.

// Ones in the lanes of a word's four places from k on that lie before `depth`.
fn ones_before(k: u32, depth: u32) -> u32 { return 0x01010101u >> (8u * (4u - min(depth - k, 4u))); }

fn without_zeros(ab: vec4<i32>, a: i32, b: vec4<i32>, depth: u32) -> vec4<i32> {
  return ab - params.a_zero * b - params.b_zero * a + i32(depth) * params.a_zero * params.b_zero;
}

fn part(p: vec4<u32>, first: vec4<u32>) -> vec4<i32> {
  let depth = params.a_dims.w;
  let a_batch = min(p.xy, params.a_dims.xy - 1u);
  let b_batch = min(p.xy, params.b_dims.xy - 1u);
  let rows = min(p.w + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(params.b_dims.z - 1u));
  var ab = vec4<i32>(0);
  var a_sum = 0;
  var b_sums = vec4<i32>(0);
  for (var k = 0u; k < depth; k += 4u) {
    let ones = ones_before(k, depth);
    let word = a_word(vec4<u32>(a_batch, p.z, k)) & (ones * 0xffu);
    let b0 = b_word(vec4<u32>(b_batch, rows.x, k));
    let b1 = b_word(vec4<u32>(b_batch, rows.y, k));
    let b2 = b_word(vec4<u32>(b_batch, rows.z, k));
    let b3 = b_word(vec4<u32>(b_batch, rows.w, k));
    ab += vec4<i32>(dot4(word, b0), dot4(word, b1), dot4(word, b2), dot4(word, b3));
    a_sum += dot4(word, ones);
    b_sums += vec4<i32>(dot4(ones, b0), dot4(ones, b1), dot4(ones, b2), dot4(ones, b3));
  }
  return without_zeros(ab, a_sum, b_sums, depth);
}

// All columns have one multiplier and no bias.
fn near_product_quad(quad: u32) -> Near {
  return Near(vec4<f32>(params.multiplier), vec4<i32>(params.offset), vec4<f32>(params.low), vec4<f32>(params.high),
              vec4<f32>(params.magic));
}

fn scaled_product_quad(quad: u32) -> Scaled { return Scaled(vec4<f32>(params.multiplier), vec4<f32>(0.0)); }

fn rounded_product_quad(quad: u32) -> Channel { return Channel(vec4<f32>(params.multiplier), vec4<i32>(0)); }
