// Rows of x as im2col would lay them out, found while loading: k runs over (tap, channel). A reading of x fills the
// hooks `place_of` and `load_x`: by whole vectors, by words, or by bytes.

// Where the window of a pixel of the result begins: first row of its image, row and column in it.
struct Row { image: u32, y: u32, x: u32 }

fn row_of(m: u32) -> Row {
  let r = m / params.sums.w;
  // Unsigned: a tap above or left of the image wraps to a huge number.
  return Row(r / params.sums.z * params.x_dims.z,
             r % params.sums.z * params.stride.x - params.padding.x,
             m % params.sums.w * params.stride.y - params.padding.y);
}

// --- whole vectors: k runs over (tap, channels) ---

struct Place { y: u32, x: u32, channel: u32 }

fn place_of(k: u32) -> Place {
  let vectors = params.row_words / 4u;
  let tap = k / vectors;
  return Place(tap / params.kernel.y * params.dilation.x, tap % params.kernel.y * params.dilation.y, k % vectors);
}

fn load_x(row: Row, place: Place) -> vec4<u32> {
  let y = row.y + place.y;
  let column = row.x + place.x;
  let outside = y >= params.x_dims.z || column >= params.x_dims.w;
  if (BRANCHES && outside) { return params.x_zeros; }
  let value = x[((row.image + y) * params.x_dims.w + column) * (params.row_words / 4u) + place.channel];
  return select(value, params.x_zeros, !BRANCHES && outside);
}

// --- words, where a pixel's channels are no whole vectors: k runs over (tap, channel quad) ---

struct WordPlaces { y: vec4<u32>, x: vec4<u32>, channel: vec4<u32> }

fn place_of_words(k: u32) -> WordPlaces {
  let word = 4u * k + vec4<u32>(0u, 1u, 2u, 3u);
  let tap = word / params.row_words;
  return WordPlaces(
    tap / params.kernel.y * params.dilation.x, tap % params.kernel.y * params.dilation.y, word % params.row_words);
}

fn load_word(row: Row, y_step: u32, x_step: u32, channel: u32) -> u32 {
  let y = row.y + y_step;
  let column = row.x + x_step;
  let outside = y >= params.x_dims.z || column >= params.x_dims.w;
  if (BRANCHES && outside) { return params.x_zeros.x; }
  let value = x[((row.image + y) * params.x_dims.w + column) * params.row_words + channel];
  return select(value, params.x_zeros.x, !BRANCHES && outside);
}

fn load_words(row: Row, place: WordPlaces) -> vec4<u32> {
  return vec4<u32>(
    load_word(row, place.y.x, place.x.x, place.channel.x),
    load_word(row, place.y.y, place.x.y, place.channel.y),
    load_word(row, place.y.z, place.x.z, place.channel.z),
    load_word(row, place.y.w, place.x.w, place.channel.w));
}

// --- bytes, for images of one channel: k runs over taps alone, four of them to a word ---

// A pixel's word holds its value in lane 0. Taps past the last meet weights of 0.

struct BytePlaces { y: array<vec4<u32>, 4>, x: array<vec4<u32>, 4> }

fn place_of_bytes(k: u32) -> BytePlaces {
  var place: BytePlaces;
  for (var i = 0u; i < 4u; i++) {
    let tap = 16u * k + 4u * i + vec4<u32>(0u, 1u, 2u, 3u);
    place.y[i] = tap / params.kernel.y * params.dilation.x;
    place.x[i] = tap % params.kernel.y * params.dilation.y;
  }
  return place;
}

fn load_byte(row: Row, y_step: u32, x_step: u32) -> u32 {
  let y = row.y + y_step;
  let column = row.x + x_step;
  let outside = y >= params.x_dims.z || column >= params.x_dims.w;
  if (BRANCHES && outside) { return params.x_zeros.x & 0xffu; }
  let value = x[(row.image + y) * params.x_dims.w + column];
  return select(value, params.x_zeros.x, !BRANCHES && outside) & 0xffu;
}

fn load_word_of_bytes(row: Row, y: vec4<u32>, x: vec4<u32>) -> u32 {
  return load_byte(row, y.x, x.x) | (load_byte(row, y.y, x.y) << 8u) |
         (load_byte(row, y.z, x.z) << 16u) | (load_byte(row, y.w, x.w) << 24u);
}

fn load_bytes(row: Row, place: BytePlaces) -> vec4<u32> {
  return vec4<u32>(
    load_word_of_bytes(row, place.y[0], place.x[0]),
    load_word_of_bytes(row, place.y[1], place.x[1]),
    load_word_of_bytes(row, place.y[2], place.x[2]),
    load_word_of_bytes(row, place.y[3], place.x[3]));
}
