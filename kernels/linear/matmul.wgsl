// Batch dimensions of extent 1 are broadcast.
alias Partial = f32;
fn merge(a: Partial, b: Partial) -> Partial { return a + b; }

fn partial_result(p: vec4<u32>, first: vec4<u32>) -> Partial {
  let a_batch = min(p.xy, params.a_dims.xy - 1u);
  let b_batch = min(p.xy, params.b_dims.xy - 1u);
  var sum = 0.0;
  for (var k = first.w; k < params.a_dims.w; k += STEPS.w) {
    sum += a_at(vec4<u32>(a_batch, p.z, k)) * b_at(vec4<u32>(b_batch, k, p.w));
  }
  return sum;
}

fn finish(p: vec4<u32>, sum: Partial) -> f32 { return sum; }

// The operands of the tiled matrix product.
fn left_item(at: u32) -> Item { return a[at]; }
fn right_item(at: u32) -> Item { return b[at]; }
fn start(batch: u32, m: u32, n: u32) -> vec4<f32> { return vec4<f32>(); }

fn matrix_of(batch: u32, dims: vec4<u32>) -> u32 {
  let outer = min(batch / params.y_dims.y, dims.x - 1u);
  let inner = min(batch % params.y_dims.y, dims.y - 1u);
  return (outer * dims.y + inner) * dims.z * dims.w;
}

fn left_of(batch: u32) -> u32 { return matrix_of(batch, params.a_dims); }
fn right_of(batch: u32) -> u32 { return matrix_of(batch, params.b_dims); }
