// Weights of 4 bits (q8ta_wgpu/ir/bits.py) as vectors of 16 int8. Sums of a group's products are multiplied by its
// factor. k counts vectors of 16 inputs.

// The weights come behind the factors in rows of COLUMNS vectors, two rows in one: the first in the high bits of each
// byte.
fn load_w(at: u32) -> vec4<u32> {
  let row = at / COLUMNS;
  let pair = weight[params.factors + row / 2u * COLUMNS + at % COLUMNS];
  return int8_of_bits(pair >> vec4<u32>(4u * (1u - row % 2u)));
}

// The low 4 bits of each byte with their sign.
fn int8_of_bits(v: vec4<u32>) -> vec4<u32> {
  let low = v & vec4<u32>(0x0f0f0f0fu);
  return low | ((low & vec4<u32>(0x08080808u)) * 30u);
}

fn weight_factor(quad: u32, k: u32) -> vec4<i32> { return unpack4xI8(factor_word(quad, k)); }

// The factors of a channel quad for vector k.
fn factor_word(quad: u32, k: u32) -> u32 {
  let at = quad * params.groups + k / GROUP_VECTORS;
  return weight[at / 4u][at % 4u];
}

fn add_products(acc: vec4<i32>, a: vec4<u32>, b0: vec4<u32>, b1: vec4<u32>, b2: vec4<u32>, b3: vec4<u32>,
                factor: vec4<i32>) -> vec4<i32> {
  return acc + dot_quad(vec4<i32>(0), a, b0, b1, b2, b3) * factor;
}

fn add_sum(acc: vec4<i32>, sum: vec4<i32>, factor: vec4<i32>) -> vec4<i32> { return acc + sum * factor; }
