// A slice along a dimension that whole words divide: of every run of x, params.run items from params.first on.
const ITEM_WORDS = 1u;
const ITEMS = 4u;

fn load(at: u32) -> Loaded {
  let row = at / params.run;
  return x[row * params.x_run + params.first + at - row * params.run];
}

fn result(v: Loaded) -> Loaded { return v; }
