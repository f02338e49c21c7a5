// A window's rows by bytes, for images of one channel: k runs over taps, four of them in a word. The value of a pixel is
// in lane 0 of its word. Taps past the last one have weights of 0.
struct KOffset { y: array<vec4<u32>, 4>, x: array<vec4<u32>, 4> }

fn k_offset_of(k: u32) -> KOffset {
  var k_offset: KOffset;
  for (var i = 0u; i < 4u; i++) {
    let tap = 16u * k + 4u * i + vec4<u32>(0u, 1u, 2u, 3u);
    k_offset.y[i] = tap / kernel_width() * params.dilation.x;
    k_offset.x[i] = tap % kernel_width() * params.dilation.y;
  }
  return k_offset;
}

fn k_offset_from(found: KOffset, k: u32) -> KOffset { return k_offset_of(k); }
fn k_offset_after(k_offset: KOffset) -> KOffset { return k_offset; }

fn load_lane(row: Row, y: u32, column: u32) -> u32 {
  let outside = row.y + y >= params.x_dims.z || row.x + column >= params.x_dims.w;
  if (BRANCHES && outside) { return first_lane(zero_word()); }
  let value = x[row.pixel + y * params.x_dims.w + column];
  return first_lane(select(value, zero_word(), !BRANCHES && outside));
}

fn load_word_of_lanes(row: Row, y: vec4<u32>, x: vec4<u32>) -> x_Word {
  return word_of(load_lane(row, y.x, x.x), load_lane(row, y.y, x.y), load_lane(row, y.z, x.z), load_lane(row, y.w, x.w));
}

fn load_x(row: Row, k_offset: KOffset) -> RowVector {
  return vector_of(
    load_word_of_lanes(row, k_offset.y[0], k_offset.x[0]),
    load_word_of_lanes(row, k_offset.y[1], k_offset.x[1]),
    load_word_of_lanes(row, k_offset.y[2], k_offset.x[2]),
    load_word_of_lanes(row, k_offset.y[3], k_offset.x[3]));
}
