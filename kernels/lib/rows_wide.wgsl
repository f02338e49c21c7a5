// An item is a vector of four elements of a row.
alias Item = vec4<f32>;
fn largest_of(v: Item) -> f32 { return max(max(v.x, v.y), max(v.z, v.w)); }
fn sum_of(v: Item) -> f32 { return (v.x + v.y) + (v.z + v.w); }
