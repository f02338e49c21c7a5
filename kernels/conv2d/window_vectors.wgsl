// A window's rows by whole vectors: k runs over (tap, channels).

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
