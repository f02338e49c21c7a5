// An element of the result, found by coordinates. Along params.axis an index is (outer, index, inner): of more than
// four dimensions the leading ones are folded into n, so that the concatenated one may lie between others. end_*[i] is
// the end of operand i.

fn end_of(i: u32) -> u32 {
  return select(params.end_high[i % 4u], params.end_low[i % 4u], i < 4u);
}

fn compute(p: vec4<u32>) -> Element {
  let along = p[params.axis];
  let row = along / params.inner;
  let index = row % params.extent;
  var i = 0u;
  var start = 0u;
  for (var k = 0u; k < 7u; k++) {
    if (index >= end_of(k)) {
      start = end_of(k);
      i = k + 1u;
    }
  }
  let extent = end_of(i) - start;
  let within = (row / params.extent * extent + index - start) * params.inner + along % params.inner;
  return x_at(i, select(p, vec4<u32>(within), vec4<u32>(0u, 1u, 2u, 3u) == vec4<u32>(params.axis)));
}

// Concatenation of whole words. The result consists of runs of words, and a run has a run of each operand, one after
// another. end_*[i] is the end of operand i in a run. A thread copies four items, 64 apart.
const ITEM_WORDS = 1u;
const ITEMS = 4u;

fn load(at: u32) -> Loaded {
  let row = at / params.run;
  let index = at - row * params.run;
  var i = 0u;
  var start = 0u;
  var end = params.end_low.x;
  for (var k = 1u; k < INPUTS; k++) {
    if (index >= end) {
      start = end;
      end = end_of(k);
      i = k;
    }
  }
  return x_item(i, row * (end - start) + index - start);
}

fn result(v: Loaded) -> Loaded { return v; }
