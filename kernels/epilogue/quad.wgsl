// From the accumulators of four channels of a weighted sum to the stored result. quad_value computes a value in
// registers. store_value reads an addend and stores. A kernel that makes many sums calls each of the two in a loop of
// its own: compilers do not unroll one loop with both, and then the accumulators leave registers (a residual block's
// product took twice as long on an H200). m is the index of a pixel of the sums, or of a linear's row. Linked:
// functions for the hooks (stages.wgsl, Epilogue.source).
struct Channel { multiplier: vec4<f32>, offset: vec4<i32> }

fn channel_quad(quad: u32) -> Channel { return Channel(multiplier[quad], offset[quad]); }

// The numbers that thread i of the subgroup has loaded.
fn channel_from(own: Channel, i: u32) -> Channel {
  return Channel(subgroupShuffle(own.multiplier, i), subgroupShuffle(own.offset, i));
}

fn store_value(v: vec4<i32>, m: u32, quad: u32, offsets: vec4<u32>) {
  store_result(after_rounding(v, addend_of(m, quad)), m, quad, offsets);
}

fn store_quad(acc: Acc, channel: Channel, m: u32, quad: u32) {
  store_value(quad_value(real_acc(acc), channel, residual_of(m, quad)), m, quad, quad_offsets(quad));
}
