fn compute(p: vec4<u32>) -> f32 {
  return f32(x_at(p) - params.x_zero) * params.scale;
}

// A block of row-major floats: four pixels of four channels.
fn write_block(n: u32, channel: u32, pixel: u32, unit: u32, words: vec4<u32>) {
  for (var i = 0u; i < 4u; i++) {
    let within = pixel + pixel_of(unit, i);
    let real = vec4<f32>(unpack4xI8(words[i]) - params.x_zero) * params.scale;
    for (var k = 0u; k < 4u; k++) {
      if (within < params.padded && channel + k < params.channels) {
        y[(n * params.channels + channel + k) * params.padded + within] = real[k];
      }
    }
  }
}

// Rows whose length is a multiple of four: a word of x has the same index as the vector of four floats.
const ITEM_WORDS = 1u;
const ITEMS = 4u;
alias Loaded = x_Word;

fn load(at: u32) -> Loaded { return x[at]; }
fn result(v: Loaded) -> vec4<f32> { return vec4<f32>(x_lanes(v) - params.x_zero) * params.scale; }
