// Integer average of the elements in window(p): sum of (x - x_zero) times multiplier_of(window).
alias Partial = i32;
fn merge(a: Partial, b: Partial) -> Partial { return a + b; }

fn part(p: vec4<u32>, first: vec4<u32>) -> Partial {
  let w = window(p);
  let start = w.start + first;
  var sum = 0i;
  for (var n = start.x; n < w.end.x; n += STEPS.x) {
    for (var c = start.y; c < w.end.y; c += STEPS.y) {
      for (var h = start.z; h < w.end.z; h += STEPS.z) {
        for (var i = start.w; i < w.end.w; i += STEPS.w) {
          sum += x_at(vec4<u32>(n, c, h, i)) - params.x_zero;
        }
      }
    }
  }
  return sum;
}

fn finish(p: vec4<u32>, sum: Partial) -> i32 {
  let steps = round_within(f32(sum) * multiplier_of(window(p)), 1024.0);
  return clamp(steps + params.zero, params.lo, params.hi);
}
