alias Partial = Element;
fn merge(a: Partial, b: Partial) -> Partial { return maximum(a, b); }

fn partial_result(p: vec4<u32>, first: vec4<u32>) -> Partial {
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

// Taps in the padding are ignored. If all are in the padding, the result is the lowest value.
fn first_tap(begin: i32, dilation: i32) -> i32 {
  return select(0i, (dilation - 1i - begin) / dilation, begin < 0i);
}

fn last_tap(begin: i32, size: i32, kernel: i32, dilation: i32) -> i32 {
  return min(kernel, (max(size - begin, 0i) + dilation - 1i) / dilation);
}

// The position of tap (0, 0), and the range of taps inside the image.
struct Taps { begin: vec2<i32>, first: vec2<i32>, last: vec2<i32> }

fn taps_of(p: vec4<u32>) -> Taps {
  let begin = vec2<i32>(p.zw * params.stride.xy) - vec2<i32>(params.padding.xy);
  let size = vec2<i32>(params.x_dims.zw);
  let kernel = vec2<i32>(params.kernel.xy);
  let step = vec2<i32>(params.dilation.xy);
  return Taps(
    begin, vec2<i32>(first_tap(begin.x, step.x), first_tap(begin.y, step.y)),
    vec2<i32>(last_tap(begin.x, size.x, kernel.x, step.x), last_tap(begin.y, size.y, kernel.y, step.y)));
}
