// Any convolution: dot products over input channel quads. Weight vectors: (channel quad, tap, input quad), a word for
// each channel. A group whose first input channel is not a multiple of 4 also reads channels outside of the group;
// their weights are 0.

fn first_quad(channel: u32) -> u32 {
  return channel / params.channels_per_group * params.depth_per_group / 4u;
}

// The first thread of a team adds the start value.
fn partial_result(p: vec4<u32>, first: vec4<u32>) -> Acc {
  var acc: Acc;
  if (all(first == vec4<u32>(0u))) { acc = start_acc(p.y / 4u); }
  let words = vec4<u32>(first_quad(p.y), first_quad(p.y + 1u), first_quad(p.y + 2u), first_quad(p.y + 3u));
  let last = quads(params.x_dims.y) - 1u;
  for (var ky = first.y; ky < params.kernel.x; ky += STEPS.y) {
    // Unsigned: a row above the image wraps to a huge number.
    let row = p.z * params.stride.x + ky * params.dilation.x - params.padding.x;
    for (var kx = first.z; kx < params.kernel.y; kx += STEPS.z) {
      let column = p.w * params.stride.y + kx * params.dilation.y - params.padding.y;
      let inside = row < params.x_dims.z && column < params.x_dims.w;
      let at = ((p.y / 4u * params.kernel.x + ky) * params.kernel.y + kx) * params.depth_quads;
      for (var k = first.w; k < params.depth_quads; k += STEPS.w) {
        var a = zero_word();
        if (inside) { a = x_word(vec4<u32>(p.x, min(words.x + k, last) * 4u, row, column)); }
        var b = a;
        var c = a;
        var d = a;
        if (ALIGNED == 0u && inside) {
          b = x_word(vec4<u32>(p.x, min(words.y + k, last) * 4u, row, column));
          c = x_word(vec4<u32>(p.x, min(words.z + k, last) * 4u, row, column));
          d = x_word(vec4<u32>(p.x, min(words.w + k, last) * 4u, row, column));
        }
        acc = add_words(acc, a, b, c, d, weight[at + k]);
      }
    }
  }
  return acc;
}
