// Linked: int8_of (quantize_steps).
fn compute(p: vec4<u32>) -> i32 { return int8_of(vec4<f32>(x_at(p))).x; }
