// Copies 4C to 4W in tiles.
// Uses clone_tile.
@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) thread: u32,
        @builtin(workgroup_id) group: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>) {
  let origin = tile_of(group.y * groups.x + group.x);
  if (origin.n >= params.y_dims.x) { return; }
  let quad = thread & ((1u << params.quad_bits) - 1u);
  var words: array<u32, TILE / THREADS>;
  for (var i = 0u; i < TILE / THREADS; i++) {
    let pixel = (thread + i * THREADS) >> params.quad_bits;
    words[i] = x[word_at(origin.n, origin.pixel + pixel, origin.quad + quad)];
  }
  for (var i = 0u; i < TILE / THREADS; i++) {
    tile[tile_index((thread + i * THREADS) >> params.quad_bits, quad)] = words[i];
  }
  workgroupBarrier();
  for (var i = 0u; i < BLOCKS; i++) {
    let block = block_of(thread, i);
    var pixels: vec4<u32>;
    for (var k = 0u; k < 4u; k++) { pixels[k] = tile[tile_index(block.unit * 4u + k, block.quad)]; }
    let rows = transposed(pixels);
    let channel = (origin.quad + block.quad) * 4u;
    for (var k = 0u; k < 4u; k++) {
      if (channel + k < params.channels && origin.pixel + block.unit * 4u < params.padded) {
        y[word_of_unit(origin.n, channel + k, origin.pixel, block.unit)] = rows[k];
      }
    }
  }
}
