// Merges all elements in window(p). Linked: first_item, the Partial to begin with, and item(x), the Partial of an
// element.

// The elements from `start` to `end`, without `end`, and the divisor of their sum.
struct Window { start: vec4<u32>, end: vec4<u32>, divisor: u32 }

fn partial_result(p: vec4<u32>, first: vec4<u32>) -> Partial {
  let w = window(p);
  let start = w.start + first;
  var found = first_item(w.start);
  for (var n = start.x; n < w.end.x; n += STEPS.x) {
    for (var c = start.y; c < w.end.y; c += STEPS.y) {
      for (var h = start.z; h < w.end.z; h += STEPS.z) {
        for (var i = start.w; i < w.end.w; i += STEPS.w) {
          found = merge(found, item(x_at(vec4<u32>(n, c, h, i))));
        }
      }
    }
  }
  return found;
}
