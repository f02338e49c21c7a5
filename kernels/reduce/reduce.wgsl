// Axes along which the result keeps the input's extents give the position; the others (kept extent 1) are reduced whole.
fn window(p: vec4<u32>) -> Window {
  let start = coord_WIDTH_PACKED(index_WIDTH_PACKED(p, params.y_dims), params.kept_dims);
  let end = select(start + 1u, params.x_dims, params.kept_dims == vec4<u32>(1u));
  return Window(start, end, params.divisor);
}

fn multiplier_of(w: Window) -> f32 { return params.multiplier; }

// The elements from `start` up to but without `end`, and what their sum is divided by.
struct Window { start: vec4<u32>, end: vec4<u32>, divisor: u32 }
