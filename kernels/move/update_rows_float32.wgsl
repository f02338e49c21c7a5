// A thread writes one element of the rows into the memory of a state. Other rows keep their values.
// Uses update_indices.
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
  let word = id.y * groups.x * 64u + id.x;
  let ascend = indices_ascend(thread);
  if (word >= params.items) { return; }
  var p = coord_WIDTH_PACKED(word, params.rows_dims);
  let index = written_at(p[params.axis], ascend);
  if (index == params.y_dims[params.axis]) { return; }
  p[params.axis] = index;
  y[y_index(p)] = rows[word];
}
