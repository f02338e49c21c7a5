// Copies 4W to 4C in tiles.
// Uses clone_tile.
@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) thread: u32,
        @builtin(workgroup_id) group: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>) {
  let origin = tile_of(group.y * groups.x + group.x);
  if (origin.n >= params.y_dims.x) { return; }
  var words: array<vec4<u32>, BLOCKS>;
  for (var i = 0u; i < BLOCKS; i++) {
    let block = block_of(thread, i);
    let channel = (origin.quad + block.quad) * 4u;
    let last = params.channels - 1u;
    for (var k = 0u; k < 4u; k++) {
      words[i][k] = x[word_of_unit(origin.n, min(channel + k, last), origin.pixel, block.unit)];
    }
  }
  for (var i = 0u; i < BLOCKS; i++) {
    let block = block_of(thread, i);
    let pixels = transposed(words[i]);
    for (var k = 0u; k < 4u; k++) { tile[tile_index(block.unit * 4u + k, block.quad)] = pixels[k]; }
  }
  workgroupBarrier();
  let quad = thread & ((1u << params.quad_bits) - 1u);
  for (var i = 0u; i < TILE / THREADS; i++) {
    let pixel = (thread + i * THREADS) >> params.quad_bits;
    let at = word_at(origin.n, origin.pixel + pixel, origin.quad + quad);
    if (at != NOWHERE) { y[at] = tile[tile_index(pixel, quad)]; }
  }
}
