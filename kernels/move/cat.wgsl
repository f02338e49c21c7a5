// Finds the operand that holds position p of the result. Along params.axis an index is (outer, place, inner): leading
// dimensions beyond four are folded into n, so the joined one may lie between others. end_*[i]: where operand i ends.

fn end_of(i: u32) -> u32 {
  return select(params.end_high[i % 4u], params.end_low[i % 4u], i < 4u);
}

fn compute(p: vec4<u32>) -> Element {
  let along = p[params.axis];
  let row = along / params.inner;
  let place = row % params.extent;
  var i = 0u;
  var start = 0u;
  for (var k = 0u; k < 7u; k++) {
    if (place >= end_of(k)) {
      start = end_of(k);
      i = k + 1u;
    }
  }
  let extent = end_of(i) - start;
  let within = (row / params.extent * extent + place - start) * params.inner + along % params.inner;
  return x_at(i, select(p, vec4<u32>(within), vec4<u32>(0u, 1u, 2u, 3u) == vec4<u32>(params.axis)));
}
