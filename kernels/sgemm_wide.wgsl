// Rows of whole vectors.
alias Item = vec4<f32>;

fn left_quad(base: u32, m: u32, k: u32) -> vec4<f32> {
  let found = left_item((base + min(m, params.rows - 1u) * params.depth + k) / 4u);
  return select(vec4<f32>(), found, k < params.depth);
}

fn right_quad(base: u32, k: u32, n: u32) -> vec4<f32> {
  let found = right_item((base + k * params.columns + n) / 4u);
  return select(vec4<f32>(), found, k < params.depth);
}

fn store(row: u32, n: u32, value: vec4<f32>) { y[(row + n) / 4u] = value; }
