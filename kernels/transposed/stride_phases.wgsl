// Which taps of a transposed convolution reach a place of its result: only those of the place's phase, the remainder of
// the place (padding counted) by the stride. They start with first_tap and lie params.step apart; each reads
// params.reach pixels before the last one.

fn first_tap(phase: vec2<u32>) -> vec2<u32> { return phase / params.divisor.xy * params.inverse.xy % params.step.xy; }

fn taps_of(phase: vec2<u32>) -> vec2<u32> {
  let taps = (params.kernel.xy + params.step.xy - 1u - first_tap(phase)) / params.step.xy;
  return select(vec2<u32>(0u), taps, phase % params.divisor.xy == vec2<u32>(0u));
}

// The pixel that the first tap reads. Perhaps before the image: as unsigned a huge number.
fn first_pixel(place: vec2<u32>, phase: vec2<u32>) -> vec2<u32> {
  return vec2<u32>(vec2<i32>(place + params.padding.xy - first_tap(phase) * params.dilation.xy) / vec2<i32>(params.stride.xy));
}
