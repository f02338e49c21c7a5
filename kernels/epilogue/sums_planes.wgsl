// Results whose channels are planes, (n, c, h, w). m is the index of a pixel of the sums.

// Coordinates of a quad's first channel.
fn position(m: u32, quad: u32) -> vec4<u32> {
  let row = m / params.sums.w;
  return vec4<u32>(row / params.sums.z, quad * 4u, row % params.sums.z, m % params.sums.w);
}

// The index of a float32 result, after a pixel_shuffle by params.factor, is the sum of two numbers: the index of the
// pixel's first channel, and the channel's offset from it.
fn first_index(m: u32) -> u32 {
  let row = m / params.sums.w;
  let down = row / params.sums.z * params.y_dims.y * params.y_dims.z + row % params.sums.z * params.factor;
  return down * params.y_dims.w + m % params.sums.w * params.factor;
}

fn channel_offset(channel: u32) -> u32 {
  let f = params.factor;
  let phase = channel % (f * f);
  return (channel / (f * f) * params.y_dims.z + phase / f) * params.y_dims.w + phase % f;
}
