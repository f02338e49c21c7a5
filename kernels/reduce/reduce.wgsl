// The window of a result. Along an axis that is reduced (its extent in params.keepdim_dims is 1) it is the whole axis;
// along the others it is the index of the result.
// Uses windows.
fn window(p: vec4<u32>) -> Window {
  let start = coord_WIDTH_PACKED(index_WIDTH_PACKED(p, params.y_dims), params.keepdim_dims);
  let end = select(start + 1u, params.x_dims, params.keepdim_dims == vec4<u32>(1u));
  return Window(start, end, params.divisor);
}

fn multiplier_of(w: Window) -> f32 { return params.multiplier; }
