fn compute(p: vec4<u32>) -> i32 { return x_at(p); }

fn combine(x: x_Word) -> Word { return x; }
