// The taps of convolutions of any kind: dot products over input channel quads. Weight vectors: (channel quad, tap, input
// quad), a word for each channel. A group whose first input channel is not a multiple of 4 also reads channels outside
// of the group; their weights are 0. A depthwise convolution has one word for a channel quad and tap, with a lane for
// each channel.

// The first words that four channels from `channel` on read of a pixel.
fn first_quads(channel: u32) -> vec4<u32> {
  let channels = vec4<u32>(channel) + vec4<u32>(0u, 1u, 2u, 3u);
  return channels / params.channels_per_group * params.depth_per_group / 4u;
}

// Adds a tap that reads pixel (row, column) of image n. `at` is its first weight, `first` its first input quad.
fn add_tap(own: Acc, words: vec4<u32>, n: u32, row: u32, column: u32, at: u32, first: u32) -> Acc {
  let last = quads(params.x_dims.y) - 1u;
  let inside = row < params.x_dims.z && column < params.x_dims.w;
  var acc = own;
  for (var k = first; k < words_of_tap(); k += STEPS.w) {
    var a = zero_word();
    if (inside) { a = x_word(vec4<u32>(n, min(words.x + k, last) * 4u, row, column)); }
    var b = a;
    var c = a;
    var d = a;
    if (ALIGNED == 0u && inside) {
      b = x_word(vec4<u32>(n, min(words.y + k, last) * 4u, row, column));
      c = x_word(vec4<u32>(n, min(words.z + k, last) * 4u, row, column));
      d = x_word(vec4<u32>(n, min(words.w + k, last) * 4u, row, column));
    }
    acc = add_words(acc, a, b, c, d, weight[at + k]);
  }
  return acc;
}

fn words_of_tap() -> u32 { return params.depth_quads; }

// Of a depthwise convolution.
fn one_word() -> u32 { return 1u; }
fn add_each_lane(acc: Acc, a: x_Word, b: x_Word, c: x_Word, d: x_Word, w: u32) -> Acc {
  return add_lanes(acc, a, unpack4xI8(w));
}
