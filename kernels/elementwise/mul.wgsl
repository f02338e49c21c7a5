fn compute(p: vec4<u32>) -> f32 {
  let a = a_at(min(p, params.a_dims - 1u));
  let b = b_at(min(p, params.b_dims - 1u));
  return a * b;
}
