// The element at a computed index along params.axis. Integers below 0 count from the end. Indices outside are clamped,
// and NaN is 0. Along the other
// dimensions an extent of 1 is read at 0.
fn compute(p: vec4<u32>) -> Element {
  var at = min(p, params.x_dims - 1u);
  at[params.axis] = place_within(min(p, params.place_dims - 1u), params.x_dims[params.axis] - 1u);
  return x_at(at);
}

fn place_float32(p: vec4<u32>, last: u32) -> u32 {
  let place = place_at(p);
  return u32(select(clamp(place, 0.0, f32(last)), 0.0, is_nan(place)));
}

fn place_int32(p: vec4<u32>, last: u32) -> u32 {
  let place = place_at(p);
  return u32(clamp(place + select(0, i32(last) + 1, place < 0), 0, i32(last)));
}
