// An item is an element of a row.
alias Item = f32;
fn largest_of(v: Item) -> f32 { return v; }
fn sum_of(v: Item) -> f32 { return v; }
