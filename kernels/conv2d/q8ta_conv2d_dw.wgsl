// Depthwise convolution with one output channel per input channel. Weight words: (channel quad, tap), a lane a channel.

fn accumulate(p: vec4<u32>) -> vec4<i32> {
  var acc = start_quad(p.y / 4u);
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
