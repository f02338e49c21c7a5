// Row-major floats to 4C where all channels fit one word: pixels side by side on both sides.
const ITEM_WORDS = 1u;
const ITEMS = 4u;
alias Loaded = vec4<f32>;

fn load(at: u32) -> Loaded {
  let n = at / params.pixels;
  let first = at + n * (params.channels - 1u) * params.pixels;
  var found = vec4<f32>(x[first]);
  for (var c = 1u; c < params.channels; c++) { found[c] = x[first + c * params.pixels]; }
  return found;
}

fn result(v: Loaded) -> u32 { return quantized(v); }
