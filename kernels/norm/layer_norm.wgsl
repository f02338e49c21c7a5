// A team of threads normalizes a row of adjacent items: it computes the mean, then the sum of squared differences from
// it. If CENTERED is 0, the mean counts as 0.
alias Partial = f32;
fn merge(a: Partial, b: Partial) -> Partial { return a + b; }

fn take_row(team: Team) {
  let base = team.row * params.items;

  var sum = 0.0;
  for (var k = team.lane; k < params.items; k += LANES) { sum += sum_of(x[base + k]); }
  let mean = select(0.0, reduced(team.thread, sum) / params.length, CENTERED == 1u);

  var squares = 0.0;
  for (var k = team.lane; k < params.items; k += LANES) {
    let distance = x[base + k] - mean;
    squares += sum_of(distance * distance);
  }
  let factor = inverseSqrt(reduced(team.thread, squares) / params.length + params.eps);
  if (!team.stores) { return; }
  for (var k = team.lane; k < params.items; k += LANES) { y[base + k] = affine((x[base + k] - mean) * factor, team.row, k); }
}

// layer_norm has gamma and beta for each item of a row.
fn affine_element(v: Item, row: u32, k: u32) -> Item { return v * gamma[k] + beta[k]; }

// rms_norm has gamma only.
fn scaled_element(v: Item, row: u32, k: u32) -> Item { return v * gamma[k]; }

// group_norm has gamma and beta for each channel, which has params.inner items.
fn affine_channel(v: Item, row: u32, k: u32) -> Item {
  let c = row % params.groups * params.per_group + k / params.inner;
  return v * gamma[c] + beta[c];
}
