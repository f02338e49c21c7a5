// Any transposed convolution: each output reads the taps that fall on an input pixel, or on the border around them.
// Weight words: (channel quad, tap, input quad, channel in quad), each row's first word at its group's first channel.
// Per-channel operands come once for each phase (y and x of the padded place modulo the stride).

const TILE_LANE = vec4<u32>(0u, 1u, 0u, 0u);
fn tile_coord(tile: u32) -> vec4<u32> { return coord_4C(tile, params.y_dims); }
fn channel_of(p: vec4<u32>) -> u32 {
  let r = (p.zw + params.padding.xy) % params.stride.xy;
  return (r.x * params.stride.y + r.y) * quads(params.y_dims.y) * 4u + p.y;
}

fn first_channel(channel: u32) -> u32 { return channel / params.channels_per_group * params.depth_per_group; }

// Four channels from any one on. What lies past a group meets weights of 0.
fn four_from(p: vec4<u32>) -> u32 {
  let low = x_word(p);
  let shift = p.y % 4u * 8u;
  if (shift == 0u) { return low; }
  let high = x_word(vec4<u32>(p.x, min(p.y + 4u, params.x_dims.y - 1u), p.zw));
  return (low >> shift) | (high << (32u - shift));
}

fn accumulate(p: vec4<u32>) -> vec4<i32> {
  var acc = vec4<i32>(0);
  let taps = params.kernel.x * params.kernel.y;
  let last = params.x_dims.y - 1u;
  for (var tap = 0u; tap < taps; tap++) {
    let back = vec2<u32>(tap / params.kernel.y, tap % params.kernel.y) * params.dilation.xy;
    let place = vec2<i32>(p.zw + params.padding.xy - back);
    let pixel = place / vec2<i32>(params.stride.xy);
    if (any(pixel * vec2<i32>(params.stride.xy) != place)) { continue; }
    // Unsigned: a row above the image is a huge number.
    let inside = all(vec2<u32>(pixel) < params.x_dims.zw);
    var at = (p.y / 4u * taps + tap) * params.depth_quads * 4u;
    for (var k = 0u; k < params.depth_quads; k++) {
      var word = params.x_zeros;
      if (inside) {
        word.x = four_from(vec4<u32>(p.x, min(first_channel(p.y) + 4u * k, last), vec2<u32>(pixel)));
        word.y = word.x;
        word.z = word.x;
        word.w = word.x;
        if (ALIGNED == 0u) {
          word.y = four_from(vec4<u32>(p.x, min(first_channel(p.y + 1u) + 4u * k, last), vec2<u32>(pixel)));
          word.z = four_from(vec4<u32>(p.x, min(first_channel(p.y + 2u) + 4u * k, last), vec2<u32>(pixel)));
          word.w = four_from(vec4<u32>(p.x, min(first_channel(p.y + 3u) + 4u * k, last), vec2<u32>(pixel)));
        }
      }
      acc += vec4<i32>(
        dot4I8Packed(word.x, weight[at]),
        dot4I8Packed(word.y, weight[at + 1u]),
        dot4I8Packed(word.z, weight[at + 2u]),
        dot4I8Packed(word.w, weight[at + 3u]));
      at += 4u;
    }
  }
  return acc;
}
