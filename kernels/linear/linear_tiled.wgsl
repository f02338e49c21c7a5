// The sides of a product with one matrix: the weight turned, (depth, columns).
fn left_item(at: u32) -> Item { return x[at]; }
fn right_item(at: u32) -> Item { return weight[at]; }
fn left_of(batch: u32) -> u32 { return 0u; }
fn right_of(batch: u32) -> u32 { return 0u; }

fn start(batch: u32, m: u32, n: u32) -> vec4<f32> {
  return vec4<f32>(bias[n], bias[n + STRIDE], bias[n + 2u * STRIDE], bias[n + 3u * STRIDE]);
}
