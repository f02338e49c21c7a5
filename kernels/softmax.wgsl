// One workgroup computes one row: elements `inner` apart. LOG = 1 gives the logarithm.
const THREADS = 64u;
var<workgroup> partial: array<f32, THREADS>;

fn exponential_sum(base: u32, first: u32, largest: f32) -> f32 {
  var sum = 0.0;
  for (var k = first; k < params.length; k += THREADS) {
    sum += exp(x[base + k * params.inner] - largest);
  }
  return sum;
}

@compute @workgroup_size(64)
fn main(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) thread: u32,
) {
  let row = group.y * groups.x + group.x;
  if (row >= params.rows) { return; }
  let base = row / params.inner * params.length * params.inner + row % params.inner;

  var largest = x[base];
  for (var k = thread; k < params.length; k += THREADS) {
    largest = max(largest, x[base + k * params.inner]);
  }
  partial[thread] = largest;
  workgroupBarrier();
  for (var half = THREADS / 2u; half > 0u; half /= 2u) {
    if (thread < half) { partial[thread] = max(partial[thread], partial[thread + half]); }
    workgroupBarrier();
  }
  largest = partial[0];
  workgroupBarrier();

  partial[thread] = exponential_sum(base, thread, largest);
  workgroupBarrier();
  for (var half = THREADS / 2u; half > 0u; half /= 2u) {
    if (thread < half) { partial[thread] += partial[thread + half]; }
    workgroupBarrier();
  }
  let sum = partial[0];
  for (var k = thread; k < params.length; k += THREADS) {
    let at = base + k * params.inner;
    let shifted = x[at] - largest;
    if (LOG == 1u) {
      y[at] = shifted - log(sum);
    } else {
      y[at] = exp(shifted) / sum;
    }
  }
}
