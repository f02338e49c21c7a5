// Each thread of gemm_registers loads weights and the numbers of channels itself, and multiplies all words of a vector at
// once.
// Uses quad, stages.
const TURNS = 1u;
const WORDS = 4u;

fn held_weights(at: u32, local: u32) -> vec4<u32> { return vec4<u32>(); }
fn weight_of(held: vec4<u32>, at: u32, i: u32) -> vec4<u32> { return load_w(at + i); }

struct Held { start: array<vec4<i32>, HALVES>, channel: Channel }

fn held_channels(quad: u32, start: u32) -> Held { return Held(); }
fn start_of(held: Held, start: u32, i: u32, half: u32) -> vec4<i32> { return start_half(start + i, half); }
fn channel_of(held: Held, quad: u32, i: u32) -> Channel { return channel_quad(quad + i); }
