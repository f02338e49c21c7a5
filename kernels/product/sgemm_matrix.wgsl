// The right side as a matrix. Past the end of a row stand the next one's elements, or the buffer's last.
fn right_quad(base: u32, k: u32, n: u32) -> vec4<f32> {
  let at = base + k * params.columns + n;
  let found = vec4<f32>(
    right_item(at), right_item(at + STRIDE), right_item(at + 2u * STRIDE), right_item(at + 3u * STRIDE),
  );
  return select(vec4<f32>(), found, k < params.depth);
}
