// Rows of x as im2col would lay them out, found while loading: k runs over (tap, channel). A reading of x fills the
// hooks `place_of` and `load_x`: by whole vectors, by words, or by bytes.

// Where the window of a pixel of the result begins: its first pixel in x, and row and column in its image. All wrap
// where it begins outside: places of taps inside are sums and products of them, never quotients.
struct Row { pixel: u32, y: u32, x: u32 }

fn row_of(m: u32) -> Row {
  let r = m / params.sums.w;
  let y = r % params.sums.z * params.stride.x - params.padding.x;
  let column = m % params.sums.w * params.stride.y - params.padding.y;
  return Row((r / params.sums.z * params.x_dims.z + y) * params.x_dims.w + column, y, column);
}

// What places are found by: where they are constants, divisions by them are cheap.
fn pixel_words() -> u32 { return params.row_words; }
fn kernel_width() -> u32 { return params.kernel.y; }
fn given_words() -> u32 { return PIXEL_WORDS; }
fn given_width() -> u32 { return KERNEL_WIDTH; }

// --- whole vectors: k runs over (tap, channels) ---

// From a window's first vector, row and column on.
struct Place { vector: u32, y: u32, x: u32 }

fn place_of(k: u32) -> Place {
  let vectors = pixel_words() / 4u;
  let tap = k / vectors;
  let y = tap / kernel_width() * params.dilation.x;
  let column = tap % kernel_width() * params.dilation.y;
  return Place((y * params.x_dims.w + column) * vectors + k % vectors, y, column);
}

fn place_from(found: Place, k: u32) -> Place { return found; }

// The place of the next vector: the divisions of place_of take a CPU as long as many products.
fn place_after(place: Place) -> Place {
  let vectors = pixel_words() / 4u;
  let in_tap = place.vector - (place.y * params.x_dims.w + place.x) * vectors + 1u;
  let next_tap = in_tap == vectors;
  let column = place.x + select(0u, params.dilation.y, next_tap);
  let next_row = column == kernel_width() * params.dilation.y;
  let y = place.y + select(0u, params.dilation.x, next_row);
  let x = select(column, 0u, next_row);
  return Place((y * params.x_dims.w + x) * vectors + select(in_tap, 0u, next_tap), y, x);
}

fn load_x(row: Row, place: Place) -> RowVector {
  let outside = row.y + place.y >= params.x_dims.z || row.x + place.x >= params.x_dims.w;
  if (BRANCHES && outside) { return zero_vector(); }
  return zeros_where(vector_at(row.pixel * (pixel_words() / 4u) + place.vector), !BRANCHES && outside);
}

// --- words, where a pixel's channels are no whole vectors: k runs over (tap, channel quad) ---

struct WordPlaces { word: vec4<u32>, y: vec4<u32>, x: vec4<u32> }

fn place_of_words(k: u32) -> WordPlaces {
  let word = 4u * k + vec4<u32>(0u, 1u, 2u, 3u);
  let tap = word / pixel_words();
  let y = tap / kernel_width() * params.dilation.x;
  let column = tap % kernel_width() * params.dilation.y;
  return WordPlaces((y * params.x_dims.w + column) * pixel_words() + word % pixel_words(), y, column);
}

fn words_from(found: WordPlaces, k: u32) -> WordPlaces { return place_of_words(k); }
fn words_after(place: WordPlaces) -> WordPlaces { return place; }

fn load_word(row: Row, word: u32, y: u32, column: u32) -> x_Word {
  let outside = row.y + y >= params.x_dims.z || row.x + column >= params.x_dims.w;
  if (BRANCHES && outside) { return zero_word(); }
  let value = x[row.pixel * pixel_words() + word];
  return select(value, zero_word(), !BRANCHES && outside);
}

fn load_words(row: Row, place: WordPlaces) -> RowVector {
  return vector_of(
    load_word(row, place.word.x, place.y.x, place.x.x),
    load_word(row, place.word.y, place.y.y, place.x.y),
    load_word(row, place.word.z, place.y.z, place.x.z),
    load_word(row, place.word.w, place.y.w, place.x.w));
}

// --- elements, for images of one channel: k runs over taps alone, four of them to a word ---

// A pixel's word holds its value in lane 0. Taps past the last meet weights of 0.

struct LanePlaces { y: array<vec4<u32>, 4>, x: array<vec4<u32>, 4> }

fn place_of_lanes(k: u32) -> LanePlaces {
  var place: LanePlaces;
  for (var i = 0u; i < 4u; i++) {
    let tap = 16u * k + 4u * i + vec4<u32>(0u, 1u, 2u, 3u);
    place.y[i] = tap / kernel_width() * params.dilation.x;
    place.x[i] = tap % kernel_width() * params.dilation.y;
  }
  return place;
}

fn lanes_from(found: LanePlaces, k: u32) -> LanePlaces { return place_of_lanes(k); }
fn lanes_after(place: LanePlaces) -> LanePlaces { return place; }

fn load_lane(row: Row, y: u32, column: u32) -> u32 {
  let outside = row.y + y >= params.x_dims.z || row.x + column >= params.x_dims.w;
  if (BRANCHES && outside) { return first_lane(zero_word()); }
  let value = x[row.pixel + y * params.x_dims.w + column];
  return first_lane(select(value, zero_word(), !BRANCHES && outside));
}

fn load_word_of_lanes(row: Row, y: vec4<u32>, x: vec4<u32>) -> x_Word {
  return word_of(load_lane(row, y.x, x.x), load_lane(row, y.y, x.y), load_lane(row, y.z, x.z), load_lane(row, y.w, x.w));
}

fn load_lanes(row: Row, place: LanePlaces) -> RowVector {
  return vector_of(
    load_word_of_lanes(row, place.y[0], place.x[0]),
    load_word_of_lanes(row, place.y[1], place.x[1]),
    load_word_of_lanes(row, place.y[2], place.x[2]),
    load_word_of_lanes(row, place.y[3], place.x[3]));
}
