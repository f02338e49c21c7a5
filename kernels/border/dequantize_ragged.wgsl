// Rows of floats of any length: four neighbours may begin in one row and end in another. The result is written past its
// last element up to a whole vector.
const ITEM_WORDS = 1u;
const ITEMS = 4u;
alias Loaded = vec4<i32>;

fn load(at: u32) -> Loaded {
  var row = at * 4u / params.y_dims.w;
  var column = at * 4u - row * params.y_dims.w;
  var found: vec4<i32>;
  for (var i = 0u; i < 4u; i++) {
    found[i] = lane(x[row * params.row_words + column / 4u], column % 4u);
    column++;
    if (column == params.y_dims.w) {
      column = 0u;
      row++;
    }
  }
  return found;
}

fn result(v: Loaded) -> vec4<f32> { return vec4<f32>(v - params.x_zero) * params.scale; }
