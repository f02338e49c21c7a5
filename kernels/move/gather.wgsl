// The element at a computed index along params.axis. params.from_end is added to negative integers: it is 0, or the
// number of elements, so that they count from the end. Then indices are clamped to the dimension, and NaN is 0. Other
// dimensions of extent 1 are broadcast.
fn compute(p: vec4<u32>) -> Element {
  var at = min(p, params.x_dims - 1u);
  at[params.axis] = index_within(min(p, params.indices_dims - 1u), params.x_dims[params.axis] - 1u);
  return x_at(at);
}

fn index_float32(p: vec4<u32>, last: u32) -> u32 {
  let index = indices_at(p);
  return u32(select(clamp(index, 0.0, f32(last)), 0.0, is_nan(index)));
}

fn index_int32(p: vec4<u32>, last: u32) -> u32 {
  let index = indices_at(p);
  return u32(clamp(index + select(0, i32(params.from_end), index < 0), 0, i32(last)));
}
