// A thread writes one word of the rows, or one element of float32, into the memory of a state. Other rows keep their
// values. Linked: row_coord, the coordinates of a word of the rows.
// Uses update_indices.
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
  let word = id.y * groups.x * 64u + id.x;
  let ascend = indices_ascend(thread);
  if (word >= params.items) { return; }
  var p = row_coord(word, params.rows_dims);
  let index = written_at(p[params.axis], ascend);
  if (index == params.y_dims[params.axis]) { return; }
  p[params.axis] = index;
  y[y_index(p)] = row_word(word);
}

fn row_word(word: u32) -> Word { return rows[word]; }
