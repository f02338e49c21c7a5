// Integer average of the elements in window(p), four channels a word: sums of (x - x_zero) times multiplier_of(window).
const ITEMS = 1u;

fn words_of(p: vec4<u32>) -> Words {
  let w = window(vec4<u32>(p.x, 0u, p.zw));
  var sum: Lanes;
  for (var h = w.start.z; h < w.end.z; h++) {
    for (var i = w.start.w; i < w.end.w; i++) { sum = added(sum, x_group(p.x, h, i, p.y)); }
  }
  return averaged(sum, (w.end.z - w.start.z) * (w.end.w - w.start.w), multiplier_of(w));
}
