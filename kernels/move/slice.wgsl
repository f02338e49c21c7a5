// A slice of whole words: from every run of x it copies params.run items, beginning with item params.first.
const ITEM_WORDS = 1u;
const ITEMS = 4u;

fn load(at: u32) -> Loaded {
  let row = at / params.run;
  return x[row * params.x_run + params.first + at - row * params.run];
}

fn result(v: Loaded) -> Loaded { return v; }
