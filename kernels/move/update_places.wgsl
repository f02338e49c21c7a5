// Where row i is written along params.axis; the extent for one that lies elsewhere, or is written over by a later one.
fn written_at(i: u32) -> u32 {
  let extent = params.y_dims[params.axis];
  let given = place_at(vec4<u32>(0u, 0u, 0u, i));
  let place = select(given, given + f32(extent), given < 0.0);
  let found = u32(clamp(place, 0.0, f32(extent)));
  if (is_nan(given) || f32(found) != place) { return extent; }
  for (var j = i + 1u; j < params.count; j++) {
    let later = place_at(vec4<u32>(0u, 0u, 0u, j));
    if (later == place || later + f32(extent) == place) { return extent; }
  }
  return found;
}
