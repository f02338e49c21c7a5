// 4C to 4W: the four columns of a word come from one row of channels of one pixel, or of two neighbours and more.
const ITEM_WORDS = 1u;
const ITEMS = 4u;
alias Loaded = u32;

fn load(at: u32) -> Loaded {
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

fn result(v: Loaded) -> u32 { return v; }
