// Elements at constant indices. Along params.axis an index is (outer, selected, inner): leading dimensions beyond four
// are folded into n, so the indexed one may lie between others.
fn compute(p: vec4<u32>) -> Element {
  let along = p[params.axis];
  let row = along / params.inner;
  let selected = u32(index[row % params.count]);
  let source = (row / params.count * params.extent + selected) * params.inner + along % params.inner;
  return x_at(select(p, vec4<u32>(source), vec4<u32>(0u, 1u, 2u, 3u) == vec4<u32>(params.axis)));
}
