// A team of threads computes a row, whose items are `inner` apart; with LOG = 1 the logarithm. Each thread computes its
// largest element and the sum of exponentials relative to it. These are merged as by Milakov and Gimelshein (2018).

// (largest, sum). The largest of a thread without elements is finite: infinities must not be subtracted from each
// other.
alias Partial = vec2<f32>;
const LOWEST = -3.4028234e38;

fn merge(a: Partial, b: Partial) -> Partial {
  let largest = max(a.x, b.x);
  return Partial(largest, a.y * exp(a.x - largest) + b.y * exp(b.x - largest));
}

fn take_row(team: Team) {
  let base = team.row / params.inner * params.items * params.inner + team.row % params.inner;

  var largest = LOWEST;
  for (var k = team.lane; k < params.items; k += LANES) { largest = max(largest, largest_of(x[base + k * params.inner])); }
  var sum = 0.0;
  for (var k = team.lane; k < params.items; k += LANES) { sum += sum_of(exp(x[base + k * params.inner] - largest)); }
  let merged = reduced(team.thread, Partial(largest, sum));
  if (!team.stores) { return; }

  let factor = 1.0 / merged.y;
  let log_sum = select(log(merged.y), -factor, merged.y == 0.0);  // some devices' logarithm of 0 is finite
  for (var k = team.lane; k < params.items; k += LANES) {
    let at = base + k * params.inner;
    let shifted = x[at] - merged.x;
    if (LOG == 1u) {
      y[at] = shifted - log_sum;
    } else {
      y[at] = exp(shifted) * factor;
    }
  }
}
