// Rows of float32 or int16 quantized to int8 by the scale of the row. Linked: values_at, UP.
const ITEM_WORDS = 1u;
const ITEMS = 4u;
struct Loaded { values: vec4<f32>, scale: f32 }

fn load(at: u32) -> Loaded { return Loaded(values_at(at), scale[at / params.row_words]); }

fn result(v: Loaded) -> Word {
  let steps = v.values * row_inverse(v.scale, UP);
  return packed(vec4<i32>(round(clamp(steps, vec4<f32>(-127.0), vec4<f32>(127.0)))));
}

fn values_of_words(at: u32) -> vec4<f32> { return vec4<f32>(x_lanes(x[at]) - params.x_zero); }

// NaN counts as 0. It is recognized by its bits.
fn without_nan(v: vec4<f32>) -> vec4<f32> {
  let nan = (bitcast<vec4<u32>>(v) & vec4<u32>(0x7fffffffu)) > vec4<u32>(0x7f800000u);
  return select(v, vec4<f32>(0.0), nan);
}

fn values_of_vectors(at: u32) -> vec4<f32> { return without_nan(x[at]); }

// Lanes past the end of a row may have any value.
fn values_of_floats(at: u32) -> vec4<f32> {
  let row = at / params.row_words;
  let first = row * params.x_dims.w + (at - row * params.row_words) * 4u;
  return without_nan(vec4<f32>(x[first], x[first + 1u], x[first + 2u], x[first + 3u]));
}
