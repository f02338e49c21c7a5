// group_norm: gamma and beta of each channel, `inner` items.
fn affine(v: Item, row: u32, k: u32) -> Item {
  let c = row % params.groups * params.per_group + k / params.inner;
  return v * gamma[c] + beta[c];
}
