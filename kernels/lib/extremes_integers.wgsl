// The larger and the smaller of two elements.
fn maximum(a: i32, b: i32) -> i32 { return max(a, b); }
fn minimum(a: i32, b: i32) -> i32 { return min(a, b); }
