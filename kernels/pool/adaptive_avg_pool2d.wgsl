// Uses windows.
fn window(p: vec4<u32>) -> Window {
  let first = p.zw * params.x_dims.zw / params.y_dims.zw;
  let last = ((p.zw + 1u) * params.x_dims.zw + params.y_dims.zw - 1u) / params.y_dims.zw;
  let counted = last - first;
  return Window(vec4<u32>(p.xy, first), vec4<u32>(p.xy + 1u, last), counted.x * counted.y);
}

// Windows have at most three heights and three widths, from floor(input / output) on. Each height has its multipliers
// in a field.
fn multiplier_of(w: Window) -> f32 {
  let at = w.end.zw - w.start.zw - params.x_dims.zw / params.y_dims.zw;
  var row = params.multipliers_0;
  if (at.x == 1u) { row = params.multipliers_1; }
  if (at.x == 2u) { row = params.multipliers_2; }
  return bitcast<f32>(row[at.y]);
}
