// Rows of floats that are whole words: a word of the result is the same place's four floats.
const ITEM_WORDS = 1u;
const ITEMS = 4u;
alias Loaded = vec4<f32>;

fn load(at: u32) -> Loaded { return x[at]; }
fn result(v: Loaded) -> u32 { return quantized(v); }
