// As gemm_window where a pixel's channels are no whole vectors: k runs over (tap, channel quad) in words.

struct Place { y: vec4<u32>, x: vec4<u32>, channel: vec4<u32> }

fn place_of(k: u32) -> Place {
  let word = 4u * k + vec4<u32>(0u, 1u, 2u, 3u);
  let tap = word / params.row_words;
  return Place(tap / params.kernel.y * params.dilation.x, tap % params.kernel.y * params.dilation.y, word % params.row_words);
}

fn load_word(row: Row, y_step: u32, x_step: u32, channel: u32) -> u32 {
  let y = row.y + y_step;
  let column = row.x + x_step;
  let outside = y >= params.x_dims.z || column >= params.x_dims.w;
  if (BRANCHES && outside) { return params.x_zeros.x; }
  let value = x[((row.image + y) * params.x_dims.w + column) * params.row_words + channel];
  return select(value, params.x_zeros.x, !BRANCHES && outside);
}

fn load_x(row: Row, place: Place) -> vec4<u32> {
  return vec4<u32>(
    load_word(row, place.y.x, place.x.x, place.channel.x),
    load_word(row, place.y.y, place.x.y, place.channel.y),
    load_word(row, place.y.z, place.x.z, place.channel.z),
    load_word(row, place.y.w, place.x.w, place.channel.w));
}
