fn compute(p: vec4<u32>) -> Element {
  let area = taps_of(p);
  var largest = bitcast<Element>(params.lowest);
  for (var ky = area.first.x; ky < area.last.x; ky++) {
    for (var kx = area.first.y; kx < area.last.y; kx++) {
      let at = area.begin + vec2<i32>(ky, kx) * vec2<i32>(params.dilation.xy);
      largest = maximum(largest, x_at(vec4<u32>(p.xy, vec2<u32>(at))));
    }
  }
  return largest;
}
