// Windows take three heights and three widths at most, from floor(input/output) on: a row of multipliers for each height.
fn multiplier_of(w: Window) -> f32 {
  let at = w.end.zw - w.start.zw - params.x_dims.zw / params.y_dims.zw;
  var row = params.multipliers_0;
  if (at.x == 1u) { row = params.multipliers_1; }
  if (at.x == 2u) { row = params.multipliers_2; }
  return bitcast<f32>(row[at.y]);
}
