// Per-channel operands of four channels, bound as vectors of four.
struct Channel { multiplier: vec4<f32>, offset: vec4<i32> }

fn channel_quad(quad: u32) -> Channel { return Channel(multiplier[quad], offset[quad]); }

fn start_quad(quad: u32) -> vec4<i32> { return -correction[quad]; }
