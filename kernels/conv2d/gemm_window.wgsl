// Rows of x as im2col would lay them out, found while loading: k runs over (tap, channel) in whole vectors.

struct Place { y: u32, x: u32, channel: u32 }

fn place_of(k: u32) -> Place {
  let vectors = params.row_words / 4u;
  let tap = k / vectors;
  return Place(tap / params.kernel.y * params.dilation.x, tap % params.kernel.y * params.dilation.y, k % vectors);
}

fn load_x(row: Row, place: Place) -> vec4<u32> {
  let y = row.y + place.y;
  let column = row.x + place.x;
  let outside = y >= params.x_dims.z || column >= params.x_dims.w;
  if (BRANCHES && outside) { return params.x_zeros; }
  let value = x[((row.image + y) * params.x_dims.w + column) * (params.row_words / 4u) + place.channel];
  return select(value, params.x_zeros, !BRANCHES && outside);
}
