// Elements of two operands; a dimension of extent 1 is read at 0.
fn add(p: vec4<u32>) -> f32 {
  let a = a_at(min(p, params.a_dims - 1u));
  let b = b_at(min(p, params.b_dims - 1u));
  return a + params.alpha * b;
}

fn mul(p: vec4<u32>) -> f32 {
  let a = a_at(min(p, params.a_dims - 1u));
  let b = b_at(min(p, params.b_dims - 1u));
  return a * b;
}
