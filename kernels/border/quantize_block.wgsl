// Blocks of row-major floats: four pixels, a unit apart from each other, of four channels.
fn read_block(n: u32, channel: u32, pixel: u32, unit: u32) -> vec4<u32> {
  var words: vec4<u32>;
  let last = params.channels - 1u;
  for (var i = 0u; i < 4u; i++) {
    let at = n * params.channels * params.padded + pixel + pixel_of(unit, i);
    words[i] = quantized(vec4<f32>(
      x[at + min(channel, last) * params.padded], x[at + min(channel + 1u, last) * params.padded],
      x[at + min(channel + 2u, last) * params.padded], x[at + min(channel + 3u, last) * params.padded]));
  }
  return words;
}
