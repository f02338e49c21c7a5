// Rows of floats that are whole words: a word of x is the same place's four floats.
const ITEM_WORDS = 1u;
const ITEMS = 4u;
alias Loaded = u32;

fn load(at: u32) -> Loaded { return x[at]; }
fn result(v: Loaded) -> vec4<f32> { return vec4<f32>(unpack4xI8(v) - params.x_zero) * params.scale; }
