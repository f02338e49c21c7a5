// An element of the row at a computed index.
fn compute(p: vec4<u32>) -> f32 {
  let row = place_within(vec4<u32>(0u, 0u, p.z, 0u), params.last);
  let at = row * params.width + p.w;
  return f32(lane(rows[at / 4u], at % 4u)) * scale[row];
}
