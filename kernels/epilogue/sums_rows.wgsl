// Results whose channels are innermost, as a linear's. m is the index of a row of the sums.

// Coordinates of a quad's first channel.
fn position(m: u32, quad: u32) -> vec4<u32> {
  let row = m / params.sums.z;
  return vec4<u32>(row / params.sums.y, row % params.sums.y, m % params.sums.z, quad * 4u);
}

// The index of a float32 result is the sum of two numbers: the index of the row's first channel, and the channel's
// offset.
fn first_index(m: u32) -> u32 { return m * params.channels; }

fn channel_offset(channel: u32) -> u32 { return channel; }
