// Rows of x that are contiguous along k: a linear's, or the pixels a 1x1 convolution without padding reads.
// Uses halves.

struct Row { first: u32 }

fn row_of(m: u32) -> Row {
  let r = m / params.row_grid.y;
  let pixel = (r / params.row_grid.x * params.x_grid.x + r % params.row_grid.x * params.step_grid.x) * params.x_grid.y
    + m % params.row_grid.y * params.step_grid.y;
  return Row(pixel * params.row_words);
}

// The same for rows that lie one after another: a linear's, or the pixels of a 1x1 convolution of stride 1.
fn every_row(m: u32) -> Row { return Row(m * params.row_words); }

fn k_offset_of(k: u32) -> u32 { return k; }

// gemm_registers.wgsl may compute an offset from that of the step before. Here the offset is k itself.
fn k_offset_from(found: u32, k: u32) -> u32 { return k; }
fn k_offset_after(k_offset: u32) -> u32 { return 0u; }

fn load_x(row: Row, k: u32) -> RowVector { return x_vector(row.first, k); }

// Vector k of a row, 16 elements, where rows are whole vectors.
fn whole_vector(first: u32, k: u32) -> RowVector { return vector_at(first / 4u + k); }

// Vector k of a row, 16 elements, loaded word by word. Words past the row's end have weights of 0.
fn vector_of_words(first: u32, k: u32) -> RowVector {
  let at = first + 4u * k;
  return vector_of(x[at], x[at + 1u], x[at + 2u], x[at + 3u]);
}
