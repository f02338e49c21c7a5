// Any transposed convolution: each output reads the taps of its phase (see stride_phases). Weight vectors: (channel
// quad, tap, input quad), a word for each channel, from its group's first channel on. Start values come once for each
// phase.

// Four input channels from the k-th four of an output channel's group on. What lies past the group meets weights of 0.
fn group_word(n: u32, channel: u32, k: u32, pixel: vec2<u32>) -> x_Word {
  let last = params.x_dims.y - 1u;
  let first = channel / params.channels_per_group * params.depth_per_group + 4u * k;
  let low = x_word(vec4<u32>(n, min(first, last), pixel));
  if (first % 4u == 0u) { return low; }
  return word_across(low, x_word(vec4<u32>(n, min(first + 4u, last), pixel)), first % 4u);
}

// The first thread of a team adds the start value.
fn partial_result(p: vec4<u32>, first: vec4<u32>) -> Acc {
  let phase = (p.zw + params.padding.xy) % params.stride.xy;
  var acc: Acc;
  if (all(first == vec4<u32>(0u))) {
    acc = start_acc((phase.x * params.stride.y + phase.y) * params.quads + p.y / 4u);
  }
  let taps = taps_of(phase);
  let start = first_tap(phase);
  let nearest = first_pixel(p.zw, phase);
  let depth_quads = loop_end(params.depth_quads, p.y);
  for (var t = first.z; t < taps.x * taps.y; t += STEPS.z) {
    let turn = vec2<u32>(t / taps.y, t % taps.y);
    let pixel = nearest - turn * params.reach.xy;
    let inside = all(pixel < params.x_dims.zw);
    let tap = start + turn * params.step.xy;
    let at = ((p.y / 4u * params.kernel.x + tap.x) * params.kernel.y + tap.y) * params.depth_quads;
    for (var k = first.w; k < depth_quads; k += STEPS.w) {
      var a = zero_word();
      if (inside) { a = group_word(p.x, p.y, k, pixel); }
      var b = a;
      var c = a;
      var d = a;
      if (ALIGNED == 0u && inside) {
        b = group_word(p.x, p.y + 1u, k, pixel);
        c = group_word(p.x, p.y + 2u, k, pixel);
        d = group_word(p.x, p.y + 3u, k, pixel);
      }
      acc = add_words(acc, a, b, c, d, weight[at + k]);
    }
  }
  return acc;
}
