// Weight vectors: (output quad, input quad), a word for each output.
fn accumulate(p: vec4<u32>) -> vec4<i32> {
  var acc = start_quad(p.w / 4u);
  let first = p.w / 4u * params.depth_quads;
  for (var k = 0u; k < params.depth_quads; k++) {
    let word = x_word(vec4<u32>(p.xyz, k * 4u));
    let w = weight[first + k];
    acc += vec4<i32>(dot4(word, w.x), dot4(word, w.y), dot4(word, w.z), dot4(word, w.w));
  }
  return acc;
}
