// The sides of a batched product; batch dimensions of extent 1 are read at 0.
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
