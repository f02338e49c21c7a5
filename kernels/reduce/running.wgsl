// Running sums and products of rows, floats or integers. A team of threads computes a row, whose items are
// `inner` apart. It takes as many neighbouring items as it has threads at a time, merges them pairwise (Hillis and
// Steele 1986), and merges the result so far. Linked: accumulated, of two elements; params.neutral is its neutral
// element.
alias Partial = Element;

fn total(before: Element, x: Element) -> Element { return before + x; }
fn product(before: Element, x: Element) -> Element { return before * x; }

fn take_row(team: Team) {
  let base = team.row / params.inner * params.items * params.inner + team.row % params.inner;

  var before = params.neutral;
  for (var first = 0u; first < params.items; first += LANES) {
    let k = first + team.lane;
    let at = base + min(k, params.items - 1u) * params.inner;
    var found = select(params.neutral, x[at], k < params.items);
    for (var step = 1u; step < LANES; step *= 2u) {
      partial[team.thread] = found;
      workgroupBarrier();
      if (team.lane >= step) { found = accumulated(partial[team.thread - step], found); }
      workgroupBarrier();
    }
    found = accumulated(before, found);
    partial[team.thread] = found;
    workgroupBarrier();
    before = partial[team.thread - team.lane + LANES - 1u];
    workgroupBarrier();
    if (team.stores && k < params.items) { y[at] = found; }
  }
}
