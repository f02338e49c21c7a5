// The taps that reach a pixel of a transposed convolution's result. They depend on the pixel's phase: its row and
// column plus padding, modulo the stride. The first one is first_tap, the next ones follow in steps of params.step.
// Each reads a pixel that lies params.reach before the pixel of the tap before it.

fn first_tap(phase: vec2<u32>) -> vec2<u32> { return phase / params.divisor.xy * params.inverse.xy % params.step.xy; }

fn taps_of(phase: vec2<u32>) -> vec2<u32> {
  let taps = (params.kernel.xy + params.step.xy - 1u - first_tap(phase)) / params.step.xy;
  return select(vec2<u32>(0u), taps, phase % params.divisor.xy == vec2<u32>(0u));
}

// The pixel that the first tap reads. One before the image is a huge number, since it is unsigned.
fn first_pixel(p: vec2<u32>, phase: vec2<u32>) -> vec2<u32> {
  return vec2<u32>(vec2<i32>(p + params.padding.xy - first_tap(phase) * params.dilation.xy) / vec2<i32>(params.stride.xy));
}
