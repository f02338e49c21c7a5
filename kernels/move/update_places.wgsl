// Whether each place lies behind the one before, as the positions of a prompt do: no row is then written over. The
// threads of a workgroup share the rows. One row asks as many do: behind a condition of uniforms alone, Mesa's lavapipe
// compiles the kernel anew at each dispatch, and keeps the memory.
var<workgroup> disordered: atomic<u32>;

fn places_ascend(thread: u32) -> bool {
  if (thread == 0u) { atomicStore(&disordered, 0u); }
  workgroupBarrier();
  for (var i = thread + 1u; i < params.count; i += 64u) {
    let before = place_at(vec4<u32>(0u, 0u, 0u, i - 1u));
    let place = place_at(vec4<u32>(0u, 0u, 0u, i));
    if (is_nan(before) || is_nan(place) || before < 0.0 || place <= before) { atomicStore(&disordered, 1u); }
  }
  workgroupBarrier();
  return atomicLoad(&disordered) == 0u;
}

// Where row i is written along params.axis; the extent for one that lies elsewhere, or is written over by a later one.
fn written_at(i: u32, ascend: bool) -> u32 {
  let extent = params.y_dims[params.axis];
  let given = place_at(vec4<u32>(0u, 0u, 0u, i));
  let place = select(given, given + f32(extent), given < 0.0);
  let found = u32(clamp(place, 0.0, f32(extent)));
  if (is_nan(given) || f32(found) != place) { return extent; }
  if (ascend) { return found; }
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
