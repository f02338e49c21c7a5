fn compute(p: vec4<u32>) -> i32 { return x_at(p); }

fn combine(x: x_Word) -> Word { return x; }

// Blocks of 4W: a block is one word of each of four channels. Channels past the last one repeat it, or are not written.
fn word_of_unit(n: u32, channel: u32, pixel: u32, unit: u32) -> u32 {
  return ((n * params.channels + channel) * params.padded + pixel) / 4u + unit;
}

fn read_block(n: u32, channel: u32, pixel: u32, unit: u32) -> vec4<u32> {
  let last = params.channels - 1u;
  return transposed(vec4<u32>(
    x[word_of_unit(n, min(channel, last), pixel, unit)], x[word_of_unit(n, min(channel + 1u, last), pixel, unit)],
    x[word_of_unit(n, min(channel + 2u, last), pixel, unit)], x[word_of_unit(n, min(channel + 3u, last), pixel, unit)]));
}

fn write_block(n: u32, channel: u32, pixel: u32, unit: u32, words: vec4<u32>) {
  if (pixel + unit * 4u >= params.padded) { return; }
  let rows = transposed(words);
  for (var i = 0u; i < 4u; i++) {
    if (channel + i < params.channels) { y[word_of_unit(n, channel + i, pixel, unit)] = rows[i]; }
  }
}
