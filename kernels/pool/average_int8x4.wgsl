// Integer average of the elements in window(p): sum of (x - x_zero) times multiplier_of(window).
fn compute(p: vec4<u32>) -> i32 {
  let w = window(p);
  var sum = 0i;
  for (var n = w.start.x; n < w.end.x; n++) {
    for (var c = w.start.y; c < w.end.y; c++) {
      for (var h = w.start.z; h < w.end.z; h++) {
        for (var i = w.start.w; i < w.end.w; i++) {
          sum += x_at(vec4<u32>(n, c, h, i)) - params.x_zero;
        }
      }
    }
  }
  return clamp(round_within(f32(sum) * multiplier_of(w), 1024.0) + params.zero, params.lo, params.hi);
}
