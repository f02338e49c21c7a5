// Results whose channels are planes, (n, c, h, w). Pixel m of the sums in order.

// Where the first channel of a quad lies.
fn position(m: u32, quad: u32) -> vec4<u32> {
  let row = m / params.sums.w;
  return vec4<u32>(row / params.sums.z, quad * 4u, row % params.sums.z, m % params.sums.w);
}

// Where a channel's float32 result is stored, after a pixel_shuffle by params.factor.
fn place(m: u32, channel: u32) -> u32 {
  let f = params.factor;
  let phase = channel % (f * f);
  let row = m / params.sums.w;
  let plane = row / params.sums.z * params.y_dims.y + channel / (f * f);
  let down = row % params.sums.z * f + phase / f;
  return (plane * params.y_dims.z + down) * params.y_dims.w + m % params.sums.w * f + phase % f;
}
