// A move that keeps words whole: its first lane tells where a word comes from.
const ITEM_WORDS = 1u;
const ITEMS = 4u;
alias Loaded = u32;

fn load(at: u32) -> Loaded { return x_word(source_of(y_coord(at))); }
fn result(v: Loaded) -> u32 { return v; }
