// Results whose channels are innermost, as a linear's. Row m of the sums in order.

// Where the first channel of a quad lies.
fn position(m: u32, quad: u32) -> vec4<u32> {
  let row = m / params.sums.z;
  return vec4<u32>(row / params.sums.y, row % params.sums.y, m % params.sums.z, quad * 4u);
}

// Where a channel's float32 result is stored: of a row's first channel, and how much further another one.
fn first_place(m: u32) -> u32 { return m * params.channels; }

fn channel_place(channel: u32) -> u32 { return channel; }
