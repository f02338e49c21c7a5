// Depthwise convolution with one output channel per input channel. Weight words: (channel quad, tap), a lane a channel.

// The first thread of a team brings the start value.
fn part(p: vec4<u32>, first: vec4<u32>) -> vec4<i32> {
  var acc = select(vec4<i32>(0), start_quad(p.y / 4u), all(first == vec4<u32>(0u)));
  let window = vec2<u32>(loop_end(params.kernel.x, p.z), loop_end(params.kernel.y, p.w));
  for (var ky = first.z; ky < window.x; ky += STEPS.z) {
    let at = (p.y / 4u * params.kernel.x + ky) * params.kernel.y;
    let row = p.z * params.stride.x + ky * params.dilation.x - params.padding.x;
    for (var kx = first.w; kx < window.y; kx += STEPS.w) {
      let column = p.w * params.stride.y + kx * params.dilation.y - params.padding.y;
      var word = params.x_zeros.x;
      if (row < params.x_dims.z && column < params.x_dims.w) {
        word = x_word(vec4<u32>(p.x, p.y, row, column));
      }
      acc += unpack4xI8(word) * unpack4xI8(weight[at + kx]);
    }
  }
  return acc;
}
