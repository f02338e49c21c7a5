// Any transposed convolution: each output reads the taps of its phase (see stride_phases). Weight vectors: (channel quad,
// tap, input quad), a word for each channel, from its group's first channel on. Start values come once for each phase.

// Four input channels from the k-th four of an output channel's group on. What lies past the group meets weights of 0.
fn group_word(n: u32, channel: u32, k: u32, pixel: vec2<u32>) -> u32 {
  let last = params.x_dims.y - 1u;
  let first = channel / params.channels_per_group * params.depth_per_group + 4u * k;
  let low = x_word(vec4<u32>(n, min(first, last), pixel));
  let shift = first % 4u * 8u;
  if (shift == 0u) { return low; }
  return (low >> shift) | (x_word(vec4<u32>(n, min(first + 4u, last), pixel)) << (32u - shift));
}

// The first thread of a team brings the start value.
fn part(p: vec4<u32>, first: vec4<u32>) -> vec4<i32> {
  let phase = (p.zw + params.padding.xy) % params.stride.xy;
  var acc = select(vec4<i32>(0), start_quad((phase.x * params.stride.y + phase.y) * params.quads + p.y / 4u), all(first == vec4<u32>(0u)));
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
      var word = params.x_zeros;
      if (inside) {
        word = vec4<u32>(group_word(p.x, p.y, k, pixel));
        if (ALIGNED == 0u) {
          word.y = group_word(p.x, p.y + 1u, k, pixel);
          word.z = group_word(p.x, p.y + 2u, k, pixel);
          word.w = group_word(p.x, p.y + 3u, k, pixel);
        }
      }
      let w = weight[at + k];
      acc += vec4<i32>(dot4(word.x, w.x), dot4(word.y, w.y), dot4(word.z, w.z), dot4(word.w, w.w));
    }
  }
  return acc;
}
