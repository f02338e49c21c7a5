// Transposes matrices of int8 or int16 that are packed along rows. A thread transposes a block of 4 x 4 elements: a
// word from each of four rows of x becomes a word in each of four rows of y. A workgroup takes 8 x 8 blocks, so that
// neighbouring threads read and write neighbouring words. Linked: column_of.
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
  var words: array<x_Word, 4>;
  for (var i = 0u; i < 4u; i++) {
    let r = min(block.x * 4u + i, params.rows - 1u);
    words[i] = x[(matrix * params.rows + r) * params.x_words + block.y];
  }

  if (matrix >= params.matrices || block.x >= params.y_words || block.y >= params.x_words) { return; }
  for (var j = 0u; j < 4u; j++) {
    let c = block.y * 4u + j;
    if (c < params.columns) {
      y[(matrix * params.columns + c) * params.y_words + block.x] = column_of(words[0], words[1], words[2], words[3], j);
    }
  }
}

// Element j of four words.
fn column_of_int8(a: u32, b: u32, c: u32, d: u32, j: u32) -> u32 {
  let shift = j * 8u;
  return ((a >> shift) & 255u) | (((b >> shift) & 255u) << 8u) | (((c >> shift) & 255u) << 16u) | (((d >> shift) & 255u) << 24u);
}

fn column_of_int16(a: vec2<u32>, b: vec2<u32>, c: vec2<u32>, d: vec2<u32>, j: u32) -> vec2<u32> {
  let pair = select(vec4<u32>(a.x, b.x, c.x, d.x), vec4<u32>(a.y, b.y, c.y, d.y), j > 1u);
  let found = (pair >> vec4<u32>(j % 2u * 16u)) & vec4<u32>(0xffffu);
  return found.xz | (found.yw << vec2<u32>(16u));
}
