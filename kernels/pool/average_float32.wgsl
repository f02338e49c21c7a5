// Sum of the elements in window(p) over its divisor.
fn compute(p: vec4<u32>) -> f32 {
  let w = window(p);
  var sum = 0.0;
  for (var n = w.start.x; n < w.end.x; n++) {
    for (var c = w.start.y; c < w.end.y; c++) {
      for (var h = w.start.z; h < w.end.z; h++) {
        for (var i = w.start.w; i < w.end.w; i++) {
          sum += x_at(vec4<u32>(n, c, h, i));
        }
      }
    }
  }
  return sum / f32(w.divisor);
}
