// Depthwise convolution with one output channel per input channel. Weight words: (channel quad, tap), a lane a channel.

const TILE_LANE = vec4<u32>(0u, 1u, 0u, 0u);
fn tile_coord(tile: u32) -> vec4<u32> { return coord_4C(tile, params.sums); }
fn channel_of(p: vec4<u32>) -> u32 { return p.y; }
fn output_of(p: vec4<u32>) -> u32 { return p.y; }
fn row_of_sum(p: vec4<u32>) -> u32 { return (p.x * params.sums.z + p.z) * params.sums.w + p.w; }

fn accumulate(p: vec4<u32>) -> vec4<i32> {
  var acc = vec4<i32>(0);
  var at = p.y / 4u * params.kernel.x * params.kernel.y;
  for (var ky = 0u; ky < params.kernel.x; ky++) {
    let row = p.z * params.stride.x + ky * params.dilation.x - params.padding.x;
    for (var kx = 0u; kx < params.kernel.y; kx++) {
      let column = p.w * params.stride.y + kx * params.dilation.y - params.padding.y;
      var word = params.x_zeros.x;
      if (row < params.x_dims.z && column < params.x_dims.w) {
        word = x_word(vec4<u32>(p.x, p.y, row, column));
      }
      acc += unpack4xI8(word) * unpack4xI8(weight[at]);
      at += 1u;
    }
  }
  return acc;
}
