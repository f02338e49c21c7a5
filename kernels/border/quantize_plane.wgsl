// One channel of floats to 4C: a word for every float, of which the first lane counts.
const ITEM_WORDS = 1u;
const ITEMS = 4u;
alias Loaded = f32;

fn load(at: u32) -> Loaded { return x[at]; }
fn result(v: Loaded) -> u32 { return quantized(vec4<f32>(v)); }
