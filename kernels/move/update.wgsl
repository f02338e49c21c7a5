// Rows written at computed places along params.axis; negative places count from the end, what is written last stays.
fn compute(p: vec4<u32>) -> Element {
  let at = f32(p[params.axis]);
  var row = p;
  for (var i = params.count; i > 0u; i--) {
    let place = place_at(vec4<u32>(0u, 0u, 0u, i - 1u));
    if (place == at || place + f32(params.y_dims[params.axis]) == at) {
      row[params.axis] = i - 1u;
      return rows_at(row);
    }
  }
  return x_at(p);
}
