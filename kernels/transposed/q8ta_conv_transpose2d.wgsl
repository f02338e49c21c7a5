// Any transposed convolution: each output reads the taps of its phase (see stride_phases). Weight words: (channel quad,
// tap, input quad, channel in quad), each row's first word at its group's first channel. Per-channel operands come once
// for each phase.

const TILE_LANE = vec4<u32>(0u, 1u, 0u, 0u);
fn tile_coord(tile: u32) -> vec4<u32> { return coord_4C(tile, params.sums); }

fn phase_of(p: vec4<u32>) -> vec2<u32> { return (p.zw + params.padding.xy) % params.stride.xy; }

fn row_of_sum(p: vec4<u32>) -> u32 { return (p.x * params.sums.z + p.z) * params.sums.w + p.w; }
fn output_of(p: vec4<u32>) -> u32 { return p.y; }

// Where the per-channel operands of an element lie.
fn channel_of(p: vec4<u32>) -> u32 {
  let phase = phase_of(p);
  return (phase.x * params.stride.y + phase.y) * quads(params.sums.y) * 4u + p.y;
}

// Four input channels from the k-th four of an output channel's group on. What lies past the group meets weights of 0.
fn group_word(n: u32, channel: u32, k: u32, pixel: vec2<u32>) -> u32 {
  let last = params.x_dims.y - 1u;
  let first = channel / params.channels_per_group * params.depth_per_group + 4u * k;
  let low = x_word(vec4<u32>(n, min(first, last), pixel));
  let shift = first % 4u * 8u;
  if (shift == 0u) { return low; }
  return (low >> shift) | (x_word(vec4<u32>(n, min(first + 4u, last), pixel)) << (32u - shift));
}

fn accumulate(p: vec4<u32>) -> vec4<i32> {
  var acc = vec4<i32>(0);
  let phase = phase_of(p);
  let taps = taps_of(phase);
  let start = first_tap(phase);
  let nearest = first_pixel(p.zw, phase);
  for (var t = 0u; t < taps.x * taps.y; t++) {
    let turn = vec2<u32>(t / taps.y, t % taps.y);
    let pixel = nearest - turn * params.reach.xy;
    let inside = all(pixel < params.x_dims.zw);
    let tap = start + turn * params.step.xy;
    var at = ((p.y / 4u * params.kernel.x + tap.x) * params.kernel.y + tap.y) * params.depth_quads * 4u;
    for (var k = 0u; k < params.depth_quads; k++) {
      var word = params.x_zeros;
      if (inside) {
        word = vec4<u32>(group_word(p.x, p.y, k, pixel));
        if (ALIGNED == 0u) {
          word.y = group_word(p.x, p.y + 1u, k, pixel);
          word.z = group_word(p.x, p.y + 2u, k, pixel);
          word.w = group_word(p.x, p.y + 3u, k, pixel);
        }
      }
      acc += vec4<i32>(
        dot4(word.x, weight[at]),
        dot4(word.y, weight[at + 1u]),
        dot4(word.z, weight[at + 2u]),
        dot4(word.w, weight[at + 3u]));
      at += 4u;
    }
  }
  return acc;
}
