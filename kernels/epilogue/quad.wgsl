// Four channels of a weighted sum, and the way from their accumulators to the result: first a value in registers
// (quad_value), then what is read and written for it (store_value). Kernels of many sums call the two in loops of their own:
// in one loop, compilers stop unrolling it, and the accumulators leave registers (a residual block's product took twice as
// long on an H200). m counts the pixels of the sums, or a linear's rows. Linked: what fills the hooks
// (stages, Epilogue.source).
struct Channel { multiplier: vec4<f32>, offset: vec4<i32> }

fn channel_quad(quad: u32) -> Channel { return Channel(multiplier[quad], offset[quad]); }

// What another thread of a subgroup has.
fn channel_from(own: Channel, i: u32) -> Channel {
  return Channel(subgroupShuffle(own.multiplier, i), subgroupShuffle(own.offset, i));
}

fn start_quad(quad: u32) -> vec4<i32> { return -correction[quad]; }

fn store_value(v: vec4<i32>, m: u32, quad: u32, places: vec4<u32>) {
  store_joined(joined(v, addend_of(m, quad)), m, quad, places);
}

alias Acc = vec4<i32>;

fn real_acc(acc: Acc) -> vec4<f32> { return vec4<f32>(acc); }

fn store_quad(acc: Acc, channel: Channel, m: u32, quad: u32) {
  store_value(quad_value(real_acc(acc), channel, residual_of(m, quad)), m, quad, quad_places(quad));
}
