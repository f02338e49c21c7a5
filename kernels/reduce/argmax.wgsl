// The index along params.axis of the largest element in window(p), or with LARGEST = 0 of the smallest. Of equal
// elements it is the first one. NaN comes before all numbers.
struct Partial { value: Ordered, index: u32 }

fn wins(a: Partial, b: Partial) -> bool {
  let nan = vec2<bool>(is_nan(f32(a.value)), is_nan(f32(b.value)));
  if (any(nan)) { return nan.x && !(nan.y && b.index < a.index); }
  if (a.value == b.value) { return a.index < b.index; }
  return (a.value > b.value) == (LARGEST == 1u);
}

fn merge(a: Partial, b: Partial) -> Partial {
  if (wins(a, b)) { return a; }
  return b;
}

fn partial_result(p: vec4<u32>, first: vec4<u32>) -> Partial {
  let w = window(p);
  let start = w.start[params.axis];
  var found = Partial(x_at(w.start), 0u);
  for (var i = first.w; i < w.end[params.axis] - start; i += STEPS.w) {
    var at = w.start;
    at[params.axis] = start + i;
    found = merge(found, Partial(x_at(at), i));
  }
  return found;
}

fn finish(p: vec4<u32>, found: Partial) -> i32 { return i32(found.index); }
