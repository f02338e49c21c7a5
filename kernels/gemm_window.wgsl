// Rows of x as im2col would lay them out, found while loading: k runs over (tap, channel) in whole vectors.

struct Row { image: u32, y: u32, x: u32 }
struct Place { y: u32, x: u32, channel: u32 }

fn row_of(m: u32) -> Row {
  let r = m / params.sums.w;
  // Unsigned: a tap above or left of the image wraps to a huge number.
  return Row(r / params.sums.z * params.x_dims.z,
             r % params.sums.z * params.stride.x - params.padding.x,
             m % params.sums.w * params.stride.y - params.padding.y);
}

// One phase, and pixels in order.
fn phase_of(m: u32) -> u32 { return 0u; }
fn steps_of(phase: u32) -> u32 { return params.steps; }
fn pixel_of(m: u32) -> u32 { return m; }

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
