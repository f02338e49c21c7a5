// Elements at constant indices. Along params.axis an index is (outer, selected, inner): leading dimensions beyond four
// are folded into n, so the indexed one may lie between others.
fn source_of(p: vec4<u32>) -> vec4<u32> {
  let along = p[params.axis];
  let row = along / params.inner;
  let selected = u32(index[row % params.count]);
  let source = (row / params.count * params.extent + selected) * params.inner + along % params.inner;
  return select(p, vec4<u32>(source), vec4<u32>(0u, 1u, 2u, 3u) == vec4<u32>(params.axis));
}

fn compute(p: vec4<u32>) -> Element { return x_at(source_of(p)); }

// Whole words: the source of a word's first lane says which word to read.
const ITEM_WORDS = 1u;
const ITEMS = 4u;
alias Loaded = Word;

fn load(at: u32) -> Loaded { return x_word(source_of(y_coord(at))); }
fn result(v: Loaded) -> Word { return v; }
