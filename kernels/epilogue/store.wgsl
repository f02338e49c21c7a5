// Four channels of an int8 result: one word.
fn store_value(v: vec4<i32>, m: u32, quad: u32) { y[y_quad(m, quad)] = pack4xI8(joined(v, m, quad)); }
