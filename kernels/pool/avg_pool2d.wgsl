// Uses windows.
fn window(p: vec4<u32>) -> Window {
  let begin = vec2<i32>(p.zw * params.stride.xy) - vec2<i32>(params.padding.xy);
  let end = min(begin + vec2<i32>(params.kernel.xy), vec2<i32>(params.x_dims.zw + params.padding.zw));
  let first = max(begin, vec2<i32>(0));
  let last = min(end, vec2<i32>(params.x_dims.zw));
  let counted = vec2<u32>(select(last - first, end - begin, params.counts_padding != 0u));
  return Window(
    vec4<u32>(p.xy, vec2<u32>(first)),
    vec4<u32>(p.xy + 1u, vec2<u32>(last)),
    select(counted.x * counted.y, params.divisor, params.divisor != 0u));
}

// There is one multiplier for a fixed divisor, or one for each divisor from 1 on.
fn multiplier_of(w: Window) -> f32 {
  return multiplier[select(w.divisor - 1u, 0u, params.divisor != 0u)];
}
