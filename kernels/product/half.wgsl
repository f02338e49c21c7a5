fn high_half(v: vec4<i32>) -> vec4<i32> { return v >> vec4<u32>(8u); }

fn low_half(v: vec4<i32>) -> vec4<i32> { return (v & vec4<i32>(255)) - 128; }

fn combine(x: x_Word) -> Word { return packed(half_of(x_lanes(x))); }
