// Rows shared by teams of LANES threads: which row and lane a thread has, and what a team's partial results add up to.
// Every thread must come along to every barrier, so teams past the last row repeat it and store nothing. Linked: LANES, a
// power of two; Partial and merge(a, b).
var<workgroup> partial: array<Partial, THREADS>;

fn first_row(group: vec3<u32>, groups: vec3<u32>) -> u32 { return (group.y * groups.x + group.x) * (THREADS / LANES); }

fn reduced(thread: u32, part: Partial) -> Partial {
  partial[thread] = part;
  for (var half = LANES / 2u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (thread % LANES < half) { partial[thread] = merge(partial[thread], partial[thread + half]); }
  }
  workgroupBarrier();
  let whole = partial[thread - thread % LANES];
  workgroupBarrier();
  return whole;
}
