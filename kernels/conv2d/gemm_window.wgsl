// Rows of x as im2col would store them, gathered while loading; k runs over (tap, channel). x is read by whole vectors,
// by words or by bytes: each way has its own k_offset_of and load_x.
// Uses halves.

// The first pixel of the window of a result's pixel: its index in x, and its row and column in the image. The numbers
// wrap where the window begins outside of the image. Offsets are only added to them, so that taps inside get correct
// numbers.
struct Row { pixel: u32, y: u32, x: u32 }

fn row_of(m: u32) -> Row {
  let r = m / params.sums.w;
  let y = r % params.sums.z * params.stride.x - params.padding.x;
  let column = m % params.sums.w * params.stride.y - params.padding.y;
  return Row((r / params.sums.z * params.x_dims.z + y) * params.x_dims.w + column, y, column);
}

// The divisors by which offsets are computed. Divisions by constants are cheap.
fn pixel_words() -> u32 { return params.row_words; }
fn kernel_width() -> u32 { return params.kernel.y; }
fn constant_pixel_words() -> u32 { return PIXEL_WORDS; }
fn constant_kernel_width() -> u32 { return KERNEL_WIDTH; }

// --- whole vectors: k runs over (tap, channels) ---

// The offset of a vector from the first vector, row and column of the window.
struct KOffset { vector: u32, y: u32, x: u32 }

fn k_offset_of(k: u32) -> KOffset {
  let vectors = pixel_words() / 4u;
  let tap = k / vectors;
  let y = tap / kernel_width() * params.dilation.x;
  let column = tap % kernel_width() * params.dilation.y;
  return KOffset((y * params.x_dims.w + column) * vectors + k % vectors, y, column);
}

fn k_offset_from(found: KOffset, k: u32) -> KOffset { return found; }

// The offset of the next vector, without divisions: on a CPU those of k_offset_of take as long as many products.
fn k_offset_after(k_offset: KOffset) -> KOffset {
  let vectors = pixel_words() / 4u;
  let in_tap = k_offset.vector - (k_offset.y * params.x_dims.w + k_offset.x) * vectors + 1u;
  let next_tap = in_tap == vectors;
  let column = k_offset.x + select(0u, params.dilation.y, next_tap);
  let next_row = column == kernel_width() * params.dilation.y;
  let y = k_offset.y + select(0u, params.dilation.x, next_row);
  let x = select(column, 0u, next_row);
  return KOffset((y * params.x_dims.w + x) * vectors + select(in_tap, 0u, next_tap), y, x);
}

fn load_x(row: Row, k_offset: KOffset) -> RowVector {
  let outside = row.y + k_offset.y >= params.x_dims.z || row.x + k_offset.x >= params.x_dims.w;
  if (BRANCHES && outside) { return zero_vector(); }
  return zeros_where(vector_at(row.pixel * (pixel_words() / 4u) + k_offset.vector), !BRANCHES && outside);
}

// --- words, where the words of a pixel are no multiple of four: k runs over (tap, channel quad) ---

struct WordOffsets { word: vec4<u32>, y: vec4<u32>, x: vec4<u32> }

fn word_offsets_of(k: u32) -> WordOffsets {
  let word = 4u * k + vec4<u32>(0u, 1u, 2u, 3u);
  let tap = word / pixel_words();
  let y = tap / kernel_width() * params.dilation.x;
  let column = tap % kernel_width() * params.dilation.y;
  return WordOffsets((y * params.x_dims.w + column) * pixel_words() + word % pixel_words(), y, column);
}

fn word_offsets_from(found: WordOffsets, k: u32) -> WordOffsets { return word_offsets_of(k); }
fn word_offsets_after(k_offset: WordOffsets) -> WordOffsets { return k_offset; }

fn load_word(row: Row, word: u32, y: u32, column: u32) -> x_Word {
  let outside = row.y + y >= params.x_dims.z || row.x + column >= params.x_dims.w;
  if (BRANCHES && outside) { return zero_word(); }
  let value = x[row.pixel * pixel_words() + word];
  return select(value, zero_word(), !BRANCHES && outside);
}

fn load_words(row: Row, k_offset: WordOffsets) -> RowVector {
  return vector_of(
    load_word(row, k_offset.word.x, k_offset.y.x, k_offset.x.x),
    load_word(row, k_offset.word.y, k_offset.y.y, k_offset.x.y),
    load_word(row, k_offset.word.z, k_offset.y.z, k_offset.x.z),
    load_word(row, k_offset.word.w, k_offset.y.w, k_offset.x.w));
}

// --- bytes, for images of one channel: k runs over taps, four of them in a word ---

// The value of a pixel is in lane 0 of its word. Taps past the last one have weights of 0.

struct LaneOffsets { y: array<vec4<u32>, 4>, x: array<vec4<u32>, 4> }

fn lane_offsets_of(k: u32) -> LaneOffsets {
  var k_offset: LaneOffsets;
  for (var i = 0u; i < 4u; i++) {
    let tap = 16u * k + 4u * i + vec4<u32>(0u, 1u, 2u, 3u);
    k_offset.y[i] = tap / kernel_width() * params.dilation.x;
    k_offset.x[i] = tap % kernel_width() * params.dilation.y;
  }
  return k_offset;
}

fn lane_offsets_from(found: LaneOffsets, k: u32) -> LaneOffsets { return lane_offsets_of(k); }
fn lane_offsets_after(k_offset: LaneOffsets) -> LaneOffsets { return k_offset; }

fn load_lane(row: Row, y: u32, column: u32) -> u32 {
  let outside = row.y + y >= params.x_dims.z || row.x + column >= params.x_dims.w;
  if (BRANCHES && outside) { return first_lane(zero_word()); }
  let value = x[row.pixel + y * params.x_dims.w + column];
  return first_lane(select(value, zero_word(), !BRANCHES && outside));
}

fn load_word_of_lanes(row: Row, y: vec4<u32>, x: vec4<u32>) -> x_Word {
  return word_of(load_lane(row, y.x, x.x), load_lane(row, y.y, x.y), load_lane(row, y.z, x.z), load_lane(row, y.w, x.w));
}

fn load_lanes(row: Row, k_offset: LaneOffsets) -> RowVector {
  return vector_of(
    load_word_of_lanes(row, k_offset.y[0], k_offset.x[0]),
    load_word_of_lanes(row, k_offset.y[1], k_offset.x[1]),
    load_word_of_lanes(row, k_offset.y[2], k_offset.x[2]),
    load_word_of_lanes(row, k_offset.y[3], k_offset.x[3]));
}
