// Weights of 8 bits as products read them: vectors of 16 int8.
fn load_w(at: u32) -> vec4<u32> { return weight[at]; }

fn weight_factor(quad: u32, k: u32) -> vec4<i32> { return vec4<i32>(1); }

fn add_products(acc: vec4<i32>, a: vec4<u32>, b0: vec4<u32>, b1: vec4<u32>, b2: vec4<u32>, b3: vec4<u32>,
                factor: vec4<i32>) -> vec4<i32> {
  return dot_quad(acc, a, b0, b1, b2, b3);
}

// The same for a sum of products.
fn add_sum(acc: vec4<i32>, sum: vec4<i32>, factor: vec4<i32>) -> vec4<i32> { return acc + sum; }
