alias Partial = Element;
fn merge(a: Partial, b: Partial) -> Partial { return maximum(a, b); }

fn part(p: vec4<u32>, first: vec4<u32>) -> Partial {
  let area = taps_of(p);
  let steps = vec4<i32>(STEPS);
  var largest = bitcast<Element>(params.lowest);
  for (var ky = area.first.x + i32(first.z); ky < area.last.x; ky += steps.z) {
    for (var kx = area.first.y + i32(first.w); kx < area.last.y; kx += steps.w) {
      let at = area.begin + vec2<i32>(ky, kx) * vec2<i32>(params.dilation.xy);
      largest = merge(largest, x_at(vec4<u32>(p.xy, vec2<u32>(at))));
    }
  }
  return largest;
}

fn finish(p: vec4<u32>, largest: Partial) -> Element { return largest; }
