// combine(a, b) by whole words of 4W, where one operand is a single line along the width that is added to every line.
const ITEM_WORDS = 1u;
const ITEMS = 4u;
struct Loaded { a: a_Word, b: b_Word }

fn load(at: u32) -> Loaded { return Loaded(a[at], b[at % params.line]); }
fn load_line_first(at: u32) -> Loaded { return Loaded(a[at % params.line], b[at]); }
fn result(v: Loaded) -> Word { return combine(v.a, v.b); }
