// Whether each index is larger than the one before, as the positions of a prompt are: then no row overwrites another.
// The threads of a workgroup share the comparisons. There is no shortcut for a single row: with a condition of uniforms
// alone, Mesa's lavapipe compiles the kernel again at each dispatch, and does not free the memory.
var<workgroup> disordered: atomic<u32>;

fn indices_ascend(thread: u32) -> bool {
  if (thread == 0u) { atomicStore(&disordered, 0u); }
  workgroupBarrier();
  for (var i = thread + 1u; i < params.count; i += 64u) {
    let before = indices_at(vec4<u32>(0u, 0u, 0u, i - 1u));
    let index = indices_at(vec4<u32>(0u, 0u, 0u, i));
    if (is_nan(before) || is_nan(index) || before < 0.0 || index <= before) { atomicStore(&disordered, 1u); }
  }
  workgroupBarrier();
  return atomicLoad(&disordered) == 0u;
}

// The index at which row i is written along params.axis. params.from_end, the extent or 0, is added to negative ones. The
// index is the extent if the row is not written: because its index lies outside, or because a later row overwrites it.
fn written_at(i: u32, ascend: bool) -> u32 {
  let extent = params.y_dims[params.axis];
  let loaded = indices_at(vec4<u32>(0u, 0u, 0u, i));
  let index = select(loaded, loaded + f32(params.from_end), loaded < 0.0);
  let found = u32(clamp(index, 0.0, f32(extent)));
  if (is_nan(loaded) || f32(found) != index) { return extent; }
  if (ascend) { return found; }
  for (var j = i + 1u; j < params.count; j += 4u) {
    let later = four_indices(j);
    let from_end = later + vec4<f32>(f32(params.from_end));
    if (any((later == vec4<f32>(index)) | (from_end == vec4<f32>(index)))) { return extent; }
  }
  return found;
}

// Four indices, whose loads overlap. Past the end the last one is repeated.
fn four_indices(first: u32) -> vec4<f32> {
  let at = min(first + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(params.count - 1u));
  return vec4<f32>(indices_at(vec4<u32>(0u, 0u, 0u, at.x)), indices_at(vec4<u32>(0u, 0u, 0u, at.y)),
                   indices_at(vec4<u32>(0u, 0u, 0u, at.z)), indices_at(vec4<u32>(0u, 0u, 0u, at.w)));
}
