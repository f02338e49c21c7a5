// A team of threads computes a row of items `inner` apart; LOG = 1 gives the logarithm. Lanes find their largest element
// and the sum of exponentials relative to it, which merge like those of Milakov and Gimelshein 2018.

// (largest, sum). An empty lane's largest is finite, so that no infinity is taken from another.
alias Partial = vec2<f32>;
const LOWEST = -3.4028234e38;

fn merge(a: Partial, b: Partial) -> Partial {
  let largest = max(a.x, b.x);
  return Partial(largest, a.y * exp(a.x - largest) + b.y * exp(b.x - largest));
}

@compute @workgroup_size(THREADS)
fn main(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) thread: u32,
) {
  let place = first_row(group, groups) + thread / LANES;
  let lane = thread % LANES;
  let row = min(place, params.rows - 1u);
  let base = row / params.inner * params.items * params.inner + row % params.inner;

  var largest = LOWEST;
  for (var k = lane; k < params.items; k += LANES) { largest = max(largest, largest_of(x[base + k * params.inner])); }
  var sum = 0.0;
  for (var k = lane; k < params.items; k += LANES) { sum += sum_of(exp(x[base + k * params.inner] - largest)); }
  let whole = reduced(thread, Partial(largest, sum));
  if (place >= params.rows) { return; }

  let factor = 1.0 / whole.y;
  let log_sum = select(log(whole.y), -factor, whole.y == 0.0);  // some devices' logarithm of 0 is finite
  for (var k = lane; k < params.items; k += LANES) {
    let at = base + k * params.inner;
    let shifted = x[at] - whole.x;
    if (LOG == 1u) {
      y[at] = shifted - log_sum;
    } else {
      y[at] = exp(shifted) * factor;
    }
  }
}
