// apply(a, b) on elements; a dimension of extent 1 is read at 0.
fn compute(p: vec4<u32>) -> i32 {
  return apply(a_at(min(p, params.a_dims - 1u)), b_at(min(p, params.b_dims - 1u)));
}
