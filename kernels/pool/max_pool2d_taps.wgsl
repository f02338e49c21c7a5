// Taps in the padding are left out; with none left the result is the lowest value.
fn first_tap(begin: i32, dilation: i32) -> i32 {
  return select(0i, (dilation - 1i - begin) / dilation, begin < 0i);
}

fn last_tap(begin: i32, size: i32, kernel: i32, dilation: i32) -> i32 {
  return min(kernel, (max(size - begin, 0i) + dilation - 1i) / dilation);
}

// Where tap (0, 0) lies, and the taps inside the image.
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
