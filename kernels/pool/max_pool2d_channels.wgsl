const ITEMS = 1u;

fn words_of(p: vec4<u32>) -> Words {
  let area = taps_of(p);
  var largest = raised(Words(0x80808080u));
  for (var ky = area.first.x; ky < area.last.x; ky++) {
    for (var kx = area.first.y; kx < area.last.y; kx++) {
      let at = vec2<u32>(area.begin + vec2<i32>(ky, kx) * vec2<i32>(params.dilation.xy));
      let v = raised(x_group(p.x, at.x, at.y, p.y));
      largest = Lanes(max(largest.a, v.a), max(largest.b, v.b), max(largest.c, v.c), max(largest.d, v.d));
    }
  }
  return lowered(largest);
}
