// Adds up the partial results of a team of LANES threads, a power of two. Every thread of a workgroup must take part in
// every barrier. Linked: Partial and merge(a, b).
var<workgroup> partial: array<Partial, THREADS>;

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
