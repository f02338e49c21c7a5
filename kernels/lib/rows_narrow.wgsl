// Items of a row are its elements.
alias Item = f32;
fn largest_of(v: Item) -> f32 { return v; }
fn sum_of(v: Item) -> f32 { return v; }
