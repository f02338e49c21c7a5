// Vectors of the parts of a prologue where a pixel is the same in all tensors: for 1x1 windows of images that are not
// upsampled. Rows begin at their pixel: row_words is 1.

fn x_vector(first: u32, k: u32) -> RowVector {
  let part = part_at(k);
  return part_vector(part.w >> 8u, first * part.z + part.y + k * VECTOR_ITEMS);
}
