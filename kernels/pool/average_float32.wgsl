// Sum of the elements in window(p) over its divisor.
alias Partial = f32;
fn merge(a: Partial, b: Partial) -> Partial { return a + b; }

fn part(p: vec4<u32>, first: vec4<u32>) -> Partial {
  let w = window(p);
  let start = w.start + first;
  var sum = 0.0;
  for (var n = start.x; n < w.end.x; n += STEPS.x) {
    for (var c = start.y; c < w.end.y; c += STEPS.y) {
      for (var h = start.z; h < w.end.z; h += STEPS.z) {
        for (var i = start.w; i < w.end.w; i += STEPS.w) {
          sum += x_at(vec4<u32>(n, c, h, i));
        }
      }
    }
  }
  return sum;
}

fn finish(p: vec4<u32>, sum: Partial) -> f32 { return sum / f32(window(p).divisor); }
