// Running sums, products and extremes of rows of items `inner` apart, each by a team of threads: as many neighbours as it
// has threads at a time, joined pairwise (Hillis and Steele 1986), and what came before. RUNNING is one of the names linked
// by running.py, params.neutral what changes nothing.
alias Partial = f32;

fn joined_to(before: f32, x: f32) -> f32 {
  switch RUNNING {
    case CUMPROD: { return before * x; }
    case CUMMAX: { return maximum(before, x); }
    case CUMMIN: { return minimum(before, x); }
    default: { return before + x; }
  }
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

  var before = params.neutral;
  for (var first = 0u; first < params.items; first += LANES) {
    let k = first + lane;
    let at = base + min(k, params.items - 1u) * params.inner;
    var found = select(params.neutral, x[at], k < params.items);
    for (var step = 1u; step < LANES; step *= 2u) {
      partial[thread] = found;
      workgroupBarrier();
      if (lane >= step) { found = joined_to(partial[thread - step], found); }
      workgroupBarrier();
    }
    found = joined_to(before, found);
    partial[thread] = found;
    workgroupBarrier();
    before = partial[thread - lane + LANES - 1u];
    workgroupBarrier();
    if (place < params.rows && k < params.items) { y[at] = found; }
  }
}
