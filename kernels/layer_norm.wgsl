// One workgroup normalizes one row of adjacent elements: mean first, then the squared distances from it.
const THREADS = 64u;
var<workgroup> partial: array<f32, THREADS>;

fn total(thread: u32, part: f32) -> f32 {
  partial[thread] = part;
  workgroupBarrier();
  for (var half = THREADS / 2u; half > 0u; half /= 2u) {
    if (thread < half) { partial[thread] += partial[thread + half]; }
    workgroupBarrier();
  }
  let sum = partial[0];
  workgroupBarrier();
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
  let base = row * params.length;

  var sum = 0.0;
  for (var k = thread; k < params.length; k += THREADS) { sum += x[base + k]; }
  let mean = total(thread, sum) / f32(params.length);

  var squares = 0.0;
  for (var k = thread; k < params.length; k += THREADS) {
    let distance = x[base + k] - mean;
    squares += distance * distance;
  }
  let factor = inverseSqrt(total(thread, squares) / f32(params.length) + params.eps);

  let first = row % params.groups * params.per_group;
  for (var k = thread; k < params.length; k += THREADS) {
    let c = first + k / params.inner;
    y[base + k] = (x[base + k] - mean) * factor * gamma[c] + beta[c];
  }
}
