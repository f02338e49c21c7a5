// Rows of floats of any length: the last word of a row has lanes past its end, whose value does not matter.
const ITEM_WORDS = 1u;
const ITEMS = 4u;
alias Loaded = vec4<f32>;

fn load(at: u32) -> Loaded {
  let row = at / params.row_words;
  let first = row * params.x_dims.w + (at - row * params.row_words) * 4u;
  return vec4<f32>(x[first], x[first + 1u], x[first + 2u], x[first + 3u]);
}

fn result(v: Loaded) -> u32 { return quantized(v); }
