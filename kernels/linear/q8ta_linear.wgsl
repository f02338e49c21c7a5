// Weight words: (output quad, input quad, output in quad).

const TILE_LANE = vec4<u32>(0u, 0u, 0u, 1u);
fn tile_coord(tile: u32) -> vec4<u32> { return coord_4W(tile, params.sums); }
fn channel_of(p: vec4<u32>) -> u32 { return p.w; }
fn output_of(p: vec4<u32>) -> u32 { return p.w; }
fn row_of_sum(p: vec4<u32>) -> u32 { return (p.x * params.sums.y + p.y) * params.sums.z + p.z; }

fn accumulate(p: vec4<u32>) -> vec4<i32> {
  var acc = vec4<i32>(0);
  var at = p.w * params.depth_quads;
  for (var k = 0u; k < params.depth_quads; k++) {
    let word = x_word(vec4<u32>(p.xyz, k * 4u));
    acc += vec4<i32>(
      dot4(word, weight[at]),
      dot4(word, weight[at + 1u]),
      dot4(word, weight[at + 2u]),
      dot4(word, weight[at + 3u]));
    at += 4u;
  }
  return acc;
}
