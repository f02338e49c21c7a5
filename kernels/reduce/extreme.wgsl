// The largest element in window(p), or with LARGEST = 0 the smallest.
alias Partial = Element;
fn merge(a: Partial, b: Partial) -> Partial { return select(minimum(a, b), maximum(a, b), LARGEST == 1u); }

fn part(p: vec4<u32>, first: vec4<u32>) -> Partial {
  let w = window(p);
  let start = w.start + first;
  var found = x_at(w.start);
  for (var n = start.x; n < w.end.x; n += STEPS.x) {
    for (var c = start.y; c < w.end.y; c += STEPS.y) {
      for (var h = start.z; h < w.end.z; h += STEPS.z) {
        for (var i = start.w; i < w.end.w; i += STEPS.w) {
          found = merge(found, x_at(vec4<u32>(n, c, h, i)));
        }
      }
    }
  }
  return found;
}

fn finish(p: vec4<u32>, found: Partial) -> Element { return found; }
