// Rows of x that are made of the parts of a prologue, read while loading (kernels/prologue/prologue.py). k counts vectors
// of 16 channels in the order (part, tap, vector), so that threads of a step seldom read different tensors.
// Linked: part_at, place_at, part_vector and part_vector_or, by the linker; KERNEL_WIDTH, and VECTOR_ITEMS, the items of
// a vector in the tensors' buffers, four words or one.

// The image of a result's pixel, and the row and column in x at which its window begins. They wrap where the window
// begins outside of the image.
struct Row { image: u32, y: u32, x: u32 }
struct KOffset { part: vec4<u32>, vector: u32, y: u32, x: u32 }
const NO_TENSOR = 0xffu;

fn row_of(m: u32) -> Row {
  let r = m / params.sums.w;
  let y = r % params.sums.z * params.stride.x - params.padding.x;
  return Row(r / params.sums.z, y, m % params.sums.w * params.stride.y - params.padding.y);
}

fn k_offset_of(k: u32) -> KOffset {
  let place = place_at(k);
  let y = place.x / KERNEL_WIDTH * params.dilation.x;
  return KOffset(part_at(k), place.y, y, place.x % KERNEL_WIDTH * params.dilation.y);
}

fn k_offset_from(found: KOffset, k: u32) -> KOffset { return k_offset_of(k); }
fn k_offset_after(k_offset: KOffset) -> KOffset { return k_offset; }

fn load_x(row: Row, k_offset: KOffset) -> RowVector {
  let y = row.y + k_offset.y;
  let x = row.x + k_offset.x;
  let outside = y >= params.image.z || x >= params.image.w;
  let part = k_offset.part;
  let shift = part.w & 0xffu;
  let pixel = (row.image * (params.image.z >> shift) + (y >> shift)) * (params.image.w >> shift) + (x >> shift);
  let at = pixel * part.z + part.y + k_offset.vector * VECTOR_ITEMS;
  // On a GPU a tap outside is of no tensor: branches for both would nest, which takes up to 1.3 times as long.
  if (BRANCHES) { return part_vector_or(zero_vector(), select(part.w >> 8u, NO_TENSOR, outside), at); }
  return zeros_where(part_vector(part.w >> 8u, at), outside);
}
