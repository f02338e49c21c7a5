// Joined along a dimension that whole words divide: the result is runs of words, each a run of every operand in turn.
// end_*[i]: where operand i ends in a run of the result; a thread copies four items, a workgroup apart.
const ITEM_WORDS = 1u;
const ITEMS = 4u;

fn end_of(i: u32) -> u32 {
  return select(params.end_high[i % 4u], params.end_low[i % 4u], i < 4u);
}

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
