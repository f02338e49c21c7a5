// The elements from `start` up to but without `end`, and what their sum is divided by.
struct Window { start: vec4<u32>, end: vec4<u32>, divisor: u32 }
