// Taps in the padding are left out; with none left the result is the lowest value.
fn first_tap(begin: i32, dilation: i32) -> i32 {
  return select(0i, (dilation - 1i - begin) / dilation, begin < 0i);
}

fn taps(begin: i32, size: i32, kernel: i32, dilation: i32) -> i32 {
  return min(kernel, (max(size - begin, 0i) + dilation - 1i) / dilation);
}

fn compute(p: vec4<u32>) -> Element {
  let begin = vec2<i32>(p.zw * params.stride.xy) - vec2<i32>(params.padding.xy);
  let size = vec2<i32>(params.x_dims.zw);
  let kernel = vec2<i32>(params.kernel.xy);
  let step = vec2<i32>(params.dilation.xy);
  let rows = taps(begin.x, size.x, kernel.x, step.x);
  let columns = taps(begin.y, size.y, kernel.y, step.y);
  var largest = bitcast<Element>(params.lowest);
  for (var ky = first_tap(begin.x, step.x); ky < rows; ky++) {
    for (var kx = first_tap(begin.y, step.y); kx < columns; kx++) {
      largest = max(largest, x_at(vec4<u32>(p.xy, vec2<u32>(begin + vec2<i32>(ky, kx) * step))));
    }
  }
  return largest;
}
