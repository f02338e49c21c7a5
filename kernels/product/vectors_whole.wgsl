// Vector k of a row of x, 16 elements, where rows are whole vectors.
fn x_vector(first: u32, k: u32) -> RowVector { return vector_at(first / 4u + k); }
