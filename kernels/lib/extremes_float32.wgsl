// The larger and the smaller of two elements. If one is NaN, so is the result; `max` and `min` leave that to the
// device.
fn maximum(a: f32, b: f32) -> f32 { return select(select(max(a, b), b, is_nan(b)), a, is_nan(a)); }
fn minimum(a: f32, b: f32) -> f32 { return select(select(min(a, b), b, is_nan(b)), a, is_nan(a)); }
