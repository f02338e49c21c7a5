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

// Rows of any length: four floats may begin in one row and end in another. The last vector is written as a whole, past
// the last element.
fn load_ragged(at: u32) -> vec4<i32> {
  var row = at * 4u / params.y_dims.w;
  var column = at * 4u - row * params.y_dims.w;
  var found: vec4<i32>;
  for (var i = 0u; i < 4u; i++) {
    found[i] = lane(x[row * params.row_words + column / 4u], column % 4u);
    column++;
    if (column == params.y_dims.w) {
      column = 0u;
      row++;
    }
  }
  return found;
}

fn result_ragged(v: vec4<i32>) -> vec4<f32> { return vec4<f32>(v - params.x_zero) * params.scale; }

// One channel in 4C to floats: the first lane of each word.
fn result_plane(v: u32) -> f32 { return f32(lane(v, 0u) - params.x_zero) * params.scale; }
