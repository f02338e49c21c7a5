// Eight threads of gemm_registers are a subgroup. Lavapipe loads separately for each thread, also where all threads load
// the same, so each loads an eighth of the weights of a step, and they exchange them. `at` is the first vector of a step.
// Uses quad, stages.

// The words of a vector of k take a turn each: the code of four at once does not fit a processor's instruction caches.
// unroll.py only unrolls loops whose bounds are numbers, and this one is a conversion: its loop remains.
const TURNS = u32(4);
const WORDS = 1u;

fn held_weights(at: u32, local: u32) -> vec4<u32> { return load_w(at + local); }
fn weight_of(held: vec4<u32>, at: u32, i: u32) -> vec4<u32> { return subgroupShuffle(held, i % 8u); }

// The same for the numbers of channels: each thread loads those of one quad, and gets those of quad i from thread i.
struct Held { start: array<vec4<i32>, HALVES>, channel: Channel }

fn held_channels(quad: u32, start: u32) -> Held {
  var held = Held(array<vec4<i32>, HALVES>(), channel_quad(quad));
  for (var h = 0u; h < HALVES; h++) { held.start[h] = start_half(start, h); }
  return held;
}

fn start_of(held: Held, start: u32, i: u32, half: u32) -> vec4<i32> { return subgroupShuffle(held.start[half], i); }
fn channel_of(held: Held, quad: u32, i: u32) -> Channel { return channel_from(held.channel, i); }
