// Rows of x that are contiguous along k: a linear's, or the pixels a 1x1 convolution without padding reads.

struct Row { first: u32 }

fn row_of(m: u32) -> Row {
  let r = m / params.row_grid.y;
  let pixel = (r / params.row_grid.x * params.x_grid.x + r % params.row_grid.x * params.step_grid.x) * params.x_grid.y
    + m % params.row_grid.y * params.step_grid.y;
  return Row(pixel * params.row_words);
}

fn place_of(k: u32) -> u32 { return k; }

fn load_x(row: Row, k: u32) -> vec4<u32> { return x_vector(row.first, k); }
