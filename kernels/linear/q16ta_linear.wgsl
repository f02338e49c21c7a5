// As q8ta_linear.wgsl, with an int16 operand: one sum for its high halves, one for its low halves.
// Uses halves, weights.
fn partial_result(p: vec4<u32>, first: vec4<u32>) -> Halves {
  let starts = all(first == vec4<u32>(0u));
  var high = select(vec4<i32>(0), start_half(p.w / 4u, 0u), starts);
  var low = select(vec4<i32>(0), start_half(p.w / 4u, 1u), starts);
  let row = p.w / 4u * params.depth_quads;
  let depth_quads = loop_end(params.depth_quads, p.w);
  for (var k = first.w; k < depth_quads; k += STEPS.w) {
    let word = x_word(vec4<u32>(p.xyz, k * 4u));
    let factor = weight_factor(p.w / 4u, k / 4u);
    let w = load_w(row + k);
    high += dot_words(high_bytes(word), w) * factor;
    low += dot_words(low_bytes(word), w) * factor;
  }
  return Halves(high, low);
}
