// Rows written at computed indices along params.axis. params.from_end is added to negative indices: it is 0, or the
// number of rows, so that they count from the end. Of rows with the same index, the last one is written.
fn compute(p: vec4<u32>) -> Element {
  let at = f32(p[params.axis]);
  var row = p;
  for (var i = params.count; i > 0u; i--) {
    let index = indices_at(vec4<u32>(0u, 0u, 0u, i - 1u));
    if (index == at || index + f32(params.from_end) == at) {
      row[params.axis] = i - 1u;
      return rows_at(row);
    }
  }
  return x_at(p);
}
