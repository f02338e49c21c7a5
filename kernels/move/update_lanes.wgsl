// Rows along the packed axis: a thread writes the lanes of all rows in one line, so that no other thread writes its
// words.
// Uses update_indices.
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
  let line = id.y * groups.x * 64u + id.x;
  let ascend = indices_ascend(thread);
  if (line >= params.items) { return; }
  let height = params.rows_dims.z;
  let channels = params.rows_dims.y;
  let p = vec4<u32>(line / height / channels, line / height % channels, line % height, 0u);
  for (var i = 0u; i < params.count; i++) {
    let index = written_at(i, ascend);
    if (index == params.y_dims.w) { continue; }
    let at = y_index(vec4<u32>(p.xyz, index));
    var lanes = rows_lanes(y[at]);
    lanes[index % 4u] = rows_at(vec4<u32>(p.xyz, i));
    y[at] = packed(lanes);
  }
}
