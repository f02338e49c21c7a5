// One channel in 4C to floats: the first lane of every word.
const ITEM_WORDS = 1u;
const ITEMS = 4u;
alias Loaded = u32;

fn load(at: u32) -> Loaded { return x[at]; }
fn result(v: Loaded) -> f32 { return f32(lane(v, 0u) - params.x_zero) * params.scale; }
