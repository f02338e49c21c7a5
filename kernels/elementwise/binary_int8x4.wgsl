// apply(a, b) on elements; a dimension of extent 1 is read at 0.
fn compute(p: vec4<u32>) -> i32 {
  return apply(a_at(min(p, params.a_dims - 1u)), b_at(min(p, params.b_dims - 1u)));
}

// apply(a, b) on the lanes of two words.
fn combine(a: u32, b: u32) -> u32 {
  let left = unpack4xI8(a);
  let right = unpack4xI8(b);
  return pack4xI8(vec4<i32>(
    apply(left.x, right.x), apply(left.y, right.y), apply(left.z, right.z), apply(left.w, right.w)));
}
