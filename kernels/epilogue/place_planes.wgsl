// Where a float32 result of pixel m and a channel lies: channels are planes, after a pixel_shuffle by params.factor.
fn place(m: u32, channel: u32) -> u32 {
  let f = params.factor;
  let phase = channel % (f * f);
  let row = m / params.sums.w;
  let plane = row / params.sums.z * params.y_dims.y + channel / (f * f);
  let down = row % params.sums.z * f + phase / f;
  return (plane * params.y_dims.z + down) * params.y_dims.w + m % params.sums.w * f + phase % f;
}
