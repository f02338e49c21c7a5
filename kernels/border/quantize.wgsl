fn compute(p: vec4<u32>) -> i32 { return int8_of(vec4<f32>(x_at(p))).x; }

// A block of row-major floats: four pixels of four channels.
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

// Rows whose length is a multiple of four: a word of the result has the same index as the vector of four floats.
const ITEM_WORDS = 1u;
const ITEMS = 4u;
alias Loaded = vec4<f32>;

fn load(at: u32) -> Loaded { return x[at]; }
fn result(v: Loaded) -> Word { return packed(int8_of(v)); }
