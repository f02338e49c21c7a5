// layer_norm: gamma and beta of each item of a row.
fn affine(v: Item, row: u32, k: u32) -> Item { return v * gamma[k] + beta[k]; }
