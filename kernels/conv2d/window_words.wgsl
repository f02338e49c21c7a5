// A window's rows by words, where the words of a pixel are no multiple of four: k runs over (tap, channel quad).

struct KOffset { word: vec4<u32>, y: vec4<u32>, x: vec4<u32> }

fn k_offset_of(k: u32) -> KOffset {
  let word = 4u * k + vec4<u32>(0u, 1u, 2u, 3u);
  let tap = word / pixel_words();
  let y = tap / kernel_width() * params.dilation.x;
  let column = tap % kernel_width() * params.dilation.y;
  return KOffset((y * params.x_dims.w + column) * pixel_words() + word % pixel_words(), y, column);
}

fn k_offset_from(found: KOffset, k: u32) -> KOffset { return k_offset_of(k); }
fn k_offset_after(k_offset: KOffset) -> KOffset { return k_offset; }

fn load_word(row: Row, word: u32, y: u32, column: u32) -> x_Word {
  let outside = row.y + y >= params.x_dims.z || row.x + column >= params.x_dims.w;
  if (BRANCHES && outside) { return zero_word(); }
  let value = x[row.pixel * pixel_words() + word];
  return select(value, zero_word(), !BRANCHES && outside);
}

fn load_x(row: Row, k_offset: KOffset) -> RowVector {
  return vector_of(
    load_word(row, k_offset.word.x, k_offset.y.x, k_offset.x.x),
    load_word(row, k_offset.word.y, k_offset.y.y, k_offset.x.y),
    load_word(row, k_offset.word.z, k_offset.y.z, k_offset.x.z),
    load_word(row, k_offset.word.w, k_offset.y.w, k_offset.x.w));
}
