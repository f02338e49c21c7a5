// Where the window of a pixel of the result begins: first row of its image, row and column in it.
struct Row { image: u32, y: u32, x: u32 }

fn row_of(m: u32) -> Row {
  let r = m / params.sums.w;
  // Unsigned: a tap above or left of the image wraps to a huge number.
  return Row(r / params.sums.z * params.x_dims.z,
             r % params.sums.z * params.stride.x - params.padding.x,
             m % params.sums.w * params.stride.y - params.padding.y);
}
