// Any function of two int8: a table of 256 rows, one for each value of a, of 256 entries.
fn q8ta_binary_table(a: i32, b: i32) -> i32 {
  return entry_of(u32((a + 128) * 256 + b + 128));
}
