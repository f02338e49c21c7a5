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

// Joined along a dimension that whole words divide: the result is runs of words, each a run of every operand in turn.
// end_*[i]: where operand i ends in a run of the result; a thread copies four items, a workgroup apart.
const ITEM_WORDS = 1u;
const ITEMS = 4u;

fn load(at: u32) -> Loaded {
  let row = at / params.run;
  let place = at - row * params.run;
  var i = 0u;
  var start = 0u;
  var end = params.end_low.x;
  for (var k = 1u; k < INPUTS; k++) {
    if (place >= end) {
      start = end;
      end = end_of(k);
      i = k;
    }
  }
  return x_item(i, row * (end - start) + place - start);
}

fn result(v: Loaded) -> Loaded { return v; }
