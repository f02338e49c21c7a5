// Any function of two int8 as a table: a row for each value of a, with an entry for each value of b.
// Uses wide_table.
fn q8ta_binary_table(a: i32, b: i32) -> i32 {
  return entry_of(u32((a + 128) * 256 + b + 128));
}
