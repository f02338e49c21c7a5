// A main that writes 4C. Linked: read_block(n, first channel, padded pixel of the tile, unit), the words of four
// pixels.
@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) thread: u32,
        @builtin(workgroup_id) group: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>) {
  let origin = tile_of(group.y * groups.x + group.x);
  if (origin.n >= params.y_dims.x) { return; }
  var words: array<vec4<u32>, BLOCKS>;
  for (var i = 0u; i < BLOCKS; i++) {
    let block = block_of(thread, i);
    words[i] = read_block(origin.n, (origin.quad + block.quad) * 4u, origin.pixel, block.unit);
  }
  for (var i = 0u; i < BLOCKS; i++) {
    let block = block_of(thread, i);
    for (var k = 0u; k < 4u; k++) { tile[tile_index(pixel_of(block.unit, k), block.quad)] = words[i][k]; }
  }
  workgroupBarrier();
  let quad = thread & ((1u << params.quad_bits) - 1u);
  for (var i = 0u; i < TILE / THREADS; i++) {
    let pixel = (thread + i * THREADS) >> params.quad_bits;
    let at = word_at(origin.n, origin.pixel + pixel, origin.quad + quad);
    if (at != NOWHERE) { y[at] = tile[tile_index(pixel, quad)]; }
  }
}
