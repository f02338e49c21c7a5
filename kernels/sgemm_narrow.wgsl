// Rows of any length, element by element. Past the end of a row stand the next one's elements, or the buffer's last.
alias Item = f32;

fn left_quad(base: u32, m: u32, k: u32) -> vec4<f32> {
  let at = base + min(m, params.rows - 1u) * params.depth + k;
  let found = vec4<f32>(left_item(at), left_item(at + 1u), left_item(at + 2u), left_item(at + 3u));
  return select(vec4<f32>(), found, vec4<u32>(k, k + 1u, k + 2u, k + 3u) < vec4<u32>(params.depth));
}

fn right_quad(base: u32, k: u32, n: u32) -> vec4<f32> {
  let at = base + k * params.columns + n;
  let found = vec4<f32>(right_item(at), right_item(at + 1u), right_item(at + 2u), right_item(at + 3u));
  return select(vec4<f32>(), found, k < params.depth);
}

fn store(row: u32, n: u32, value: vec4<f32>) {
  for (var i = 0u; i < min(params.columns - n, 4u); i++) { y[row + n + i] = value[i]; }
}
