// Results whose channels are planes, (n, c, h, w). Pixel m of the sums in order.

// Where the first channel of a quad lies.
fn position(m: u32, quad: u32) -> vec4<u32> {
  let row = m / params.sums.w;
  return vec4<u32>(row / params.sums.z, quad * 4u, row % params.sums.z, m % params.sums.w);
}

// Where a channel's float32 result is stored, after a pixel_shuffle by params.factor: of a pixel's first channel, and how
// much further another one. The two have no division in common.
fn first_place(m: u32) -> u32 {
  let row = m / params.sums.w;
  let down = row / params.sums.z * params.y_dims.y * params.y_dims.z + row % params.sums.z * params.factor;
  return down * params.y_dims.w + m % params.sums.w * params.factor;
}

fn channel_place(channel: u32) -> u32 {
  let f = params.factor;
  let phase = channel % (f * f);
  return (channel / (f * f) * params.y_dims.z + phase / f) * params.y_dims.w + phase % f;
}
