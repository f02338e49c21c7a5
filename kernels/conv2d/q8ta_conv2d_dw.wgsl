// Depthwise convolution with one output channel for each input channel. Weights are words in order (channel quad, tap),
// with a lane for each channel.

// The first thread of a team adds the start value.
fn partial_result(p: vec4<u32>, first: vec4<u32>) -> Acc {
  var acc: Acc;
  if (all(first == vec4<u32>(0u))) { acc = start_acc(p.y / 4u); }
  let window = vec2<u32>(loop_end(params.kernel.x, p.z), loop_end(params.kernel.y, p.w));
  for (var ky = first.z; ky < window.x; ky += STEPS.z) {
    let at = (p.y / 4u * params.kernel.x + ky) * params.kernel.y;
    let row = p.z * params.stride.x + ky * params.dilation.x - params.padding.x;
    for (var kx = first.w; kx < window.y; kx += STEPS.w) {
      let column = p.w * params.stride.y + kx * params.dilation.y - params.padding.y;
      var word = zero_word();
      if (row < params.x_dims.z && column < params.x_dims.w) {
        word = x_word(vec4<u32>(p.x, p.y, row, column));
      }
      acc = add_lanes(acc, word, unpack4xI8(weight[at + kx]));
    }
  }
  return acc;
}
