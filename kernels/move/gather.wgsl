// The element at a computed index along params.axis. Indices outside are clamped, and NaN is 0. Along the other
// dimensions an extent of 1 is read at 0.
fn compute(p: vec4<u32>) -> f32 {
  let place = place_at(min(p, params.place_dims - 1u));
  var at = min(p, params.x_dims - 1u);
  at[params.axis] = u32(select(clamp(place, 0.0, f32(params.x_dims[params.axis] - 1u)), 0.0, is_nan(place)));
  return x_at(at);
}
