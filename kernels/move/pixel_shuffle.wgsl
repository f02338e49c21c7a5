// From 4C to 4C: the four channels of a word come from one pixel, where they lie factor * factor channels apart.
const ITEM_WORDS = 1u;
const ITEMS = 4u;
alias Loaded = u32;

fn load_4C(at: u32) -> Loaded {
  let p = y_coord(at);
  let r = params.factor;
  let pixel = p.zw / r;
  let within = p.zw - pixel * r;
  let first = p.y * r * r + within.x * r + within.y;
  let line = ((p.x * params.x_dims.z + pixel.x) * params.x_dims.w + pixel.y) * quads(params.x_dims.y);
  var found = 0u;
  for (var i = 0u; i < 4u; i++) {
    let channel = first + i * r * r;
    found |= ((x[line + channel / 4u] >> (channel % 4u * 8u)) & 0xffu) << (i * 8u);
  }
  return found;
}

fn result(v: Loaded) -> u32 { return v; }

// From 4C to 4W: the four columns of a word come from neighbouring channels of one pixel, or of several neighbouring
// pixels.
fn load_4W(at: u32) -> Loaded {
  let p = y_coord(at);
  let r = params.factor;
  let row = p.z / r;
  let first = p.y * r * r + (p.z - row * r) * r;
  let line = (p.x * params.x_dims.z + row) * params.x_dims.w;
  let words = quads(params.x_dims.y);
  var column = p.w / r;
  var within = p.w - column * r;
  var found = 0u;
  for (var i = 0u; i < 4u; i++) {
    let channel = first + within;
    let word = x[(line + column) * words + channel / 4u];
    found |= ((word >> (channel % 4u * 8u)) & 0xffu) << (i * 8u);
    within++;
    if (within == r) {
      within = 0u;
      column++;
    }
  }
  return found;
}
