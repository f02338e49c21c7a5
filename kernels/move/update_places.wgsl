// Where row i is written along params.axis; the extent for one that lies elsewhere, or is written over by a later one.
fn written_at(i: u32) -> u32 {
  let extent = params.y_dims[params.axis];
  let given = place_at(vec4<u32>(0u, 0u, 0u, i));
  let place = select(given, given + f32(extent), given < 0.0);
  let found = u32(clamp(place, 0.0, f32(extent)));
  if (is_nan(given) || f32(found) != place) { return extent; }
  for (var j = i + 1u; j < params.count; j += 4u) {
    let later = four_places(j);
    if (any((later == vec4<f32>(place)) | (later + vec4<f32>(f32(extent)) == vec4<f32>(place)))) { return extent; }
  }
  return found;
}

// Four at a time, which are read side by side; the last one again beyond the end.
fn four_places(first: u32) -> vec4<f32> {
  let at = min(first + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(params.count - 1u));
  return vec4<f32>(place_at(vec4<u32>(0u, 0u, 0u, at.x)), place_at(vec4<u32>(0u, 0u, 0u, at.y)),
                   place_at(vec4<u32>(0u, 0u, 0u, at.z)), place_at(vec4<u32>(0u, 0u, 0u, at.w)));
}
