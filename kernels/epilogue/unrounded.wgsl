// Nothing joins the sum before it is rounded.
fn unrounded(v: vec4<i32>, m: u32, quad: u32) -> vec4<i32> { return v; }
