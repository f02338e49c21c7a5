// The source of an element at a constant index, for move.wgsl. Along params.axis a selected is (outer, selected, inner):
// leading dimensions beyond four are folded into n, so the indexed one may lie between others.
fn selected_source(p: vec4<u32>) -> vec4<u32> {
  let along = p[params.axis];
  let row = along / params.inner;
  let selected = u32(index[row % params.count]);
  let source = (row / params.count * params.extent + selected) * params.inner + along % params.inner;
  return select(p, vec4<u32>(source), vec4<u32>(0u, 1u, 2u, 3u) == vec4<u32>(params.axis));
}
