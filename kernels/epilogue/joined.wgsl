// Nothing joins the int8 value.
fn joined(v: vec4<i32>, m: u32, quad: u32) -> vec4<i32> { return v; }
