// One channel repeated along the channels: all lanes of a word are one element, which is read once.
const ITEM_WORDS = 1u;
const ITEMS = 4u;
alias Loaded = Word;

fn load(at: u32) -> Loaded { return packed(vec4<i32>(x_at(min(y_coord(at), params.x_dims - 1u)))); }
fn result(v: Loaded) -> Word { return v; }
