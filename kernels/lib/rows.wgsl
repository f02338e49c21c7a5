// Merges the partial results of a team of LANES threads, a power of two. Every thread of a workgroup must reach every
// barrier. Each thread merges the last four partial results itself, which takes less time than two more barriers.
// Linked: Partial and merge(a, b).
const LAST = 4u;
var<workgroup> partial: array<Partial, THREADS>;

fn reduced(thread: u32, own: Partial) -> Partial {
  partial[thread] = own;
  for (var half = LANES / 2u; half >= LAST; half /= 2u) {
    workgroupBarrier();
    if (thread % LANES < half) { partial[thread] = merge(partial[thread], partial[thread + half]); }
  }
  workgroupBarrier();
  let first = thread - thread % LANES;
  var merged = partial[first];
  for (var i = 1u; i < min(LAST, LANES); i++) { merged = merge(merged, partial[first + i]); }
  workgroupBarrier();
  return merged;
}
