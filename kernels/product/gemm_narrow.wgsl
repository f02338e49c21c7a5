// 16 int8 of a row from its k-th vector on, word by word. Words past the row's end meet weights of 0.
fn x_vector(first: u32, k: u32) -> vec4<u32> {
  let at = first + 4u * k;
  return vec4<u32>(x[at], x[at + 1u], x[at + 2u], x[at + 3u]);
}
