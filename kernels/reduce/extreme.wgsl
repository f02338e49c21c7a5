// The largest element in window(p), or with LARGEST = 0 the smallest.
fn compute(p: vec4<u32>) -> Element {
  let w = window(p);
  var found = x_at(w.start);
  for (var n = w.start.x; n < w.end.x; n++) {
    for (var c = w.start.y; c < w.end.y; c++) {
      for (var h = w.start.z; h < w.end.z; h++) {
        for (var i = w.start.w; i < w.end.w; i++) {
          let v = x_at(vec4<u32>(n, c, h, i));
          found = select(minimum(found, v), maximum(found, v), LARGEST == 1u);
        }
      }
    }
  }
  return found;
}
