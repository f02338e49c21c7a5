// Vector k of a row of x, 16 elements, loaded word by word. Words past the row's end have weights of 0.
fn x_vector(first: u32, k: u32) -> RowVector {
  let at = first + 4u * k;
  return vector_of(x[at], x[at + 1u], x[at + 2u], x[at + 3u]);
}
