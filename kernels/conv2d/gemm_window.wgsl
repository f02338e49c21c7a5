// Rows of x as im2col would store them, gathered while loading; k runs over (tap, channel). x is read by window_vectors
// or window_words.

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
