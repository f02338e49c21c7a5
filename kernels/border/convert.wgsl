fn to_float32(p: vec4<u32>) -> f32 { return f32(x_at(p)); }
