// Weights are vectors in order (output quad, input quad), with a word for each output. The first thread of a team adds
// the start value.
// Uses weights.
fn partial_result(p: vec4<u32>, first: vec4<u32>) -> vec4<i32> {
  var acc = select(vec4<i32>(0), start_quad(p.w / 4u), all(first == vec4<u32>(0u)));
  let row = p.w / 4u * params.depth_quads;
  let depth_quads = loop_end(params.depth_quads, p.w);
  for (var k = first.w; k < depth_quads; k += STEPS.w) {
    let word = x_word(vec4<u32>(p.xyz, k * 4u));
    let w = load_w(row + k);
    acc += dot_words(word, w) * weight_factor(p.w / 4u, k / 4u);
  }
  return acc;
}
