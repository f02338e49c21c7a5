// Matrices of int8 packed along rows, transposed. A thread transposes 4 x 4 elements: a word from each of four rows of x becomes
// one in each of four rows of y; a workgroup takes 8 x 8 such blocks, so that reads and writes have neighbours.
@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) local: u32,
        @builtin(workgroup_id) group: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>) {
  let index = group.y * groups.x + group.x;
  let across = (params.x_words + 7u) / 8u;
  let down = (params.y_words + 7u) / 8u;
  let matrix = index / (across * down);
  let column = index % across * 8u;
  let row = index / across % down * 8u;

  let block = vec2<u32>(row + local / 8u, column + local % 8u);
  var words: array<u32, 4>;
  for (var i = 0u; i < 4u; i++) {
    let r = min(block.x * 4u + i, params.rows - 1u);
    words[i] = x[(matrix * params.rows + r) * params.x_words + block.y];
  }

  if (matrix >= params.matrices || block.x >= params.y_words || block.y >= params.x_words) { return; }
  for (var j = 0u; j < 4u; j++) {
    let shift = j * 8u;
    let transposed = ((words[0] >> shift) & 255u) | (((words[1] >> shift) & 255u) << 8u)
      | (((words[2] >> shift) & 255u) << 16u) | (((words[3] >> shift) & 255u) << 24u);
    let c = block.y * 4u + j;
    if (c < params.columns) { y[(matrix * params.columns + c) * params.y_words + block.x] = transposed; }
  }
}
