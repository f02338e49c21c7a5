// Adds up the partial results of a team of LANES threads, a power of two. Every thread of a workgroup must take part in
// every barrier; the last four are added by each of them, which takes less time than two barriers more. Linked: Partial
// and merge(a, b).
const LAST = 4u;
var<workgroup> partial: array<Partial, THREADS>;

fn reduced(thread: u32, part: Partial) -> Partial {
  partial[thread] = part;
  for (var half = LANES / 2u; half >= LAST; half /= 2u) {
    workgroupBarrier();
    if (thread % LANES < half) { partial[thread] = merge(partial[thread], partial[thread + half]); }
  }
  workgroupBarrier();
  let first = thread - thread % LANES;
  var whole = partial[first];
  for (var i = 1u; i < min(LAST, LANES); i++) { whole = merge(whole, partial[first + i]); }
  workgroupBarrier();
  return whole;
}
