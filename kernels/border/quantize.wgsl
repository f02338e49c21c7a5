fn compute(p: vec4<u32>) -> i32 { return int8_of(vec4<f32>(x_at(p))).x; }

// Rows whose length is a multiple of four: a word of the result has the same index as the vector of four floats.
const ITEM_WORDS = 1u;
const ITEMS = 4u;
alias Loaded = vec4<f32>;

fn load(at: u32) -> Loaded { return x[at]; }
fn result(v: Loaded) -> Word { return packed(int8_of(v)); }

// Images of up to four channels to 4C: a pixel is a word. Lanes past the last channel may have any value.
fn load_pixel(at: u32) -> Loaded {
  let first = at / params.pixels * params.channels * params.pixels + at % params.pixels;
  let planes = min(vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(params.channels - 1u)) * params.pixels;
  return vec4<f32>(x[first], x[first + planes.y], x[first + planes.z], x[first + planes.w]);
}
