// Any convolution: dot products over input channel quads. Weight vectors: (channel quad, tap, input quad), a word for
// each channel. A group whose first input channel is not a multiple of 4 also reads channels outside of the group;
// their weights are 0. A depthwise convolution has one word for a channel quad and tap, with a lane for each channel.

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
      for (var k = first.w; k < words_of_tap(); k += STEPS.w) {
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

fn words_of_tap() -> u32 { return params.depth_quads; }

// Of a depthwise convolution.
fn one_word() -> u32 { return 1u; }
fn add_each_lane(acc: Acc, a: x_Word, b: x_Word, c: x_Word, d: x_Word, w: u32) -> Acc {
  return add_lanes(acc, a, unpack4xI8(w));
}
