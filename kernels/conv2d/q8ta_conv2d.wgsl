// Any convolution. The first thread of a team adds the start value.
// Uses taps.
fn partial_result(p: vec4<u32>, first: vec4<u32>) -> Acc {
  var acc: Acc;
  if (all(first == vec4<u32>(0u))) { acc = start_acc(p.y / 4u); }
  let words = first_quads(p.y);
  for (var ky = first.y; ky < params.kernel.x; ky += STEPS.y) {
    // Unsigned: a row above the image wraps to a huge number.
    let row = p.z * params.stride.x + ky * params.dilation.x - params.padding.x;
    for (var kx = first.z; kx < params.kernel.y; kx += STEPS.z) {
      let column = p.w * params.stride.y + kx * params.dilation.y - params.padding.y;
      let at = ((p.y / 4u * params.kernel.x + ky) * params.kernel.y + kx) * words_of_tap();
      acc = add_tap(acc, words, p.x, row, column, at, first.w);
    }
  }
  return acc;
}
