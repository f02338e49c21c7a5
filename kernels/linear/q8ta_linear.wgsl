// Weights are vectors in order (output quad, input quad), with a word for each output. The first thread of a team adds
// the start value.
fn partial_result(p: vec4<u32>, first: vec4<u32>) -> Acc {
  var acc: Acc;
  if (all(first == vec4<u32>(0u))) { acc = start_acc(p.w / 4u); }
  let row = p.w / 4u * params.depth_quads;
  let depth_quads = loop_end(params.depth_quads, p.w);
  for (var k = first.w; k < depth_quads; k += STEPS.w) {
    acc = add_word(acc, x_word(vec4<u32>(p.xyz, k * 4u)), load_w(row + k), weight_factor(p.w / 4u, k / 4u));
  }
  return acc;
}
