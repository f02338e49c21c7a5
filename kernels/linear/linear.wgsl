alias Partial = f32;
fn merge(a: Partial, b: Partial) -> Partial { return a + b; }

fn partial_result(p: vec4<u32>, first: vec4<u32>) -> Partial {
  var sum = 0.0;
  for (var k = first.w; k < params.x_dims.w; k += STEPS.w) {
    sum += x_at(vec4<u32>(p.xyz, k)) * weight[p.w * params.x_dims.w + k];
  }
  return sum;
}

fn finish(p: vec4<u32>, sum: Partial) -> f32 { return sum + bias[p.w]; }

// The operands of the tiled matrix product: x, and the transposed weight (depth, columns).
fn left_item(at: u32) -> Item { return x[at]; }
fn right_item(at: u32) -> Item { return weight[at]; }
fn left_of(batch: u32) -> u32 { return 0u; }
fn right_of(batch: u32) -> u32 { return 0u; }

fn start(batch: u32, m: u32, n: u32) -> vec4<f32> {
  return vec4<f32>(bias[n], bias[n + STRIDE], bias[n + 2u * STRIDE], bias[n + 3u * STRIDE]);
}
