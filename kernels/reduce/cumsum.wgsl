// Running sums of rows of items `inner` apart, each by a team of threads: as many neighbours as it has threads at a time,
// added up pairwise (Hillis and Steele 1986), and what came before.
alias Partial = f32;

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

  var before = 0.0;
  for (var first = 0u; first < params.items; first += LANES) {
    let k = first + lane;
    let at = base + min(k, params.items - 1u) * params.inner;
    var sum = select(0.0, x[at], k < params.items);
    for (var step = 1u; step < LANES; step *= 2u) {
      partial[thread] = sum;
      workgroupBarrier();
      if (lane >= step) { sum += partial[thread - step]; }
      workgroupBarrier();
    }
    sum += before;
    partial[thread] = sum;
    workgroupBarrier();
    before = partial[thread - lane + LANES - 1u];
    workgroupBarrier();
    if (place < params.rows && k < params.items) { y[at] = sum; }
  }
}
