// The rows of x that a 1x1 convolution with strides reads.
fn row_of(m: u32) -> Row {
  let r = m / params.row_grid.y;
  let pixel = (r / params.row_grid.x * params.x_grid.x + r % params.row_grid.x * params.step_grid.x) * params.x_grid.y
    + m % params.row_grid.y * params.step_grid.y;
  return Row(pixel * params.row_words);
}
