// Any transposed convolution: each output reads the taps of its phase (see stride_phases). Start values come once for
// each phase; the first thread of a team adds them.
// Uses taps.
fn partial_result(p: vec4<u32>, first: vec4<u32>) -> Acc {
  let phase = (p.zw + params.padding.xy) % params.stride.xy;
  var acc: Acc;
  if (all(first == vec4<u32>(0u))) {
    acc = start_acc((phase.x * params.stride.y + phase.y) * params.quads + p.y / 4u);
  }
  let taps = taps_of(phase);
  let start = first_tap(phase);
  let nearest = first_pixel(p.zw, phase);
  let words = first_quads(p.y);
  for (var t = first.z; t < taps.x * taps.y; t += STEPS.z) {
    let turn = vec2<u32>(t / taps.y, t % taps.y);
    let pixel = nearest - turn * params.reach.xy;
    let tap = start + turn * params.step.xy;
    let at = ((p.y / 4u * params.kernel.x + tap.x) * params.kernel.y + tap.y) * words_of_tap();
    acc = add_tap(acc, words, p.x, pixel.x, pixel.y, at, first.w);
  }
  return acc;
}
