// Four channels at a time; those past the last become the zero point.
fn outside() -> u32 { return params.x_zeros.x; }
fn within(word: u32, unit: u32) -> u32 {
  if (unit + 1u < params.units) { return word; }
  return (word & params.used) | (params.x_zeros.x & ~params.used);
}
