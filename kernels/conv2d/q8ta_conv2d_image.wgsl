// Any convolution of a float image of up to 4 channels, quantized while loading: dot products over a pixel's channels.
// Weight vectors: (channel quad, tap), a word for each channel. Linked: int8_of (quantize).

// Channels past the last one repeat it; their weights are 0.
fn pixel(n: u32, row: u32, column: u32) -> u32 {
  if (row >= params.x_dims.z || column >= params.x_dims.w) { return splat(params.int8_zero); }
  let last = params.x_dims.y - 1u;
  return quantized(vec4<f32>(
    x_at(vec4<u32>(n, 0u, row, column)),
    x_at(vec4<u32>(n, min(1u, last), row, column)),
    x_at(vec4<u32>(n, min(2u, last), row, column)),
    x_at(vec4<u32>(n, min(3u, last), row, column))));
}

// The first thread of a team adds the start value.
fn partial_result(p: vec4<u32>, first: vec4<u32>) -> vec4<i32> {
  var acc = select(vec4<i32>(0), start_acc(p.y / 4u), all(first == vec4<u32>(0u)));
  for (var ky = first.z; ky < params.kernel.x; ky += STEPS.z) {
    // Unsigned: a row above the image wraps to a huge number.
    let at = (p.y / 4u * params.kernel.x + ky) * params.kernel.y;
    let row = p.z * params.stride.x + ky * params.dilation.x - params.padding.x;
    for (var kx = first.w; kx < params.kernel.y; kx += STEPS.w) {
      let word = pixel(p.x, row, p.w * params.stride.y + kx * params.dilation.y - params.padding.y);
      let w = weight[at + kx];
      acc += vec4<i32>(dot4(word, w.x), dot4(word, w.y), dot4(word, w.z), dot4(word, w.w));
    }
  }
  return acc;
}
