// From the accumulators of four channels of a weighted sum to the stored result. quad_value computes a value in
// registers. store_value reads an addend and stores. A kernel that makes many sums calls each of the two in a loop of
// its own: compilers do not unroll one loop with both, and then the accumulators leave registers (a residual block's
// product took twice as long on an H200). m is the index of a pixel of the sums, or of a linear's row. A Channel has the
// numbers of four channels, and those of each stage that has some (Epilogue.declarations).
// Linked: `rounded` of a stage; Acc and real_acc of halves_int8, halves_int16 or q8ta_matmul.
// Uses stages.

fn channel_quad(quad: u32) -> Channel {
  let c = min(vec4<u32>(quad * 4u) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(params.channels - 1u));
  return channel_with(numbers_of(quad), c);
}

fn quad_value(sum: vec4<f32>, channel: Channel, residual: ResidualWord) -> vec4<i32> {
  return rounded(sum, for_row(channel, residual), residual);
}

fn store_value(v: vec4<i32>, m: u32, quad: u32, offsets: vec4<u32>) {
  store_result(after_rounding(v, addend_of(m, quad)), m, quad, offsets);
}

fn store_quad(acc: Acc, channel: Channel, m: u32, quad: u32) {
  store_value(quad_value(real_acc(acc), channel, residual_of(m, quad)), m, quad, quad_offsets(quad));
}
