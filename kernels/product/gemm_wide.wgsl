// 16 int8 of a row from its k-th vector on: rows are whole vectors.
fn x_vector(first: u32, k: u32) -> vec4<u32> { return x[first / 4u + k]; }
