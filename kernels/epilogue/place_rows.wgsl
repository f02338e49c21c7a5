// Where a float32 result of row m and a channel lies: channels are innermost.
fn place(m: u32, channel: u32) -> u32 { return m * params.channels + channel; }
