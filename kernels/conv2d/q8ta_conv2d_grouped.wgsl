// Grouped convolution of 4C tensors whose groups are whole words: a thread makes COLUMNS pixels of a row and one
// channel quad, so that input words and weights are read once for all of them. Neighbouring threads make neighbouring
// quads and read neighbouring weights, which come in order (tap row, input word of the group, tap column, channel
// quad).
// Uses quad.

const SPAN = (COLUMNS - 1u) * STRIDE_X + (KERNEL_X - 1u) * DILATION_X + 1u;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
  let index = id.y * groups.x * 64u + id.x;
  let across = (params.sums.w + COLUMNS - 1u) / COLUMNS;
  let quad = index % params.quads;
  let strip = index / params.quads;
  let row = strip / across;
  let n = row / params.sums.z;
  if (n >= params.sums.x) { return; }
  let x0 = strip % across * COLUMNS;
  // Unsigned: a row or column before the image wraps to a huge number.
  let top = row % params.sums.z * params.stride_y - params.padding.x;
  let left = x0 * STRIDE_X - params.padding.y;
  let first = quad / params.group_quads * params.depth_words;

  var acc: array<Acc, COLUMNS>;
  let start = start_acc(quad);
  for (var i = 0u; i < COLUMNS; i++) { acc[i] = start; }
  for (var ky = 0u; ky < params.kernel_y; ky++) {
    let y = top + ky * params.dilation_y;
    let inside = y < params.x_dims.z;
    let line = (n * params.x_dims.z + y) * params.x_dims.w;
    for (var k = 0u; k < params.depth_words; k++) {
      var values: array<x_Word, SPAN>;
      for (var i = 0u; i < SPAN; i++) {
        let column = left + i;
        values[i] = zero_word();
        if (inside && column < params.x_dims.w) { values[i] = x[(line + column) * params.row_words + first + k]; }
      }
      let at = (ky * params.depth_words + k) * KERNEL_X * params.quads + quad;
      for (var kx = 0u; kx < KERNEL_X; kx++) {
        let w = weight[at + kx * params.quads];
        for (var i = 0u; i < COLUMNS; i++) {
          let value = values[i * STRIDE_X + kx * DILATION_X];
          acc[i] = add_words(acc[i], value, value, value, value, w);
        }
      }
    }
  }
  let channel = channel_quad(quad);
  for (var i = 0u; i < COLUMNS; i++) {
    if (x0 + i < params.sums.w) { store_quad(acc[i], channel, row * params.sums.w + x0 + i, quad); }
  }
}
