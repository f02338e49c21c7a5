// Rows of x as im2col would lay them out, from planes of floats that are quantized while loading: k runs over
// (channel, tap) in bytes, as weights lie. Bytes past the last meet weights of 0. Linked: TAPS and KERNEL_WIDTH, constants
// so that divisions by them are cheap; int8_of (quantize).

struct Row { first: u32, y: u32, x: u32 }
struct Place { first: array<vec4<u32>, 4>, y: array<vec4<u32>, 4>, x: array<vec4<u32>, 4> }

fn row_of(m: u32) -> Row {
  let r = m / params.sums.w;
  let y = r % params.sums.z * params.stride.x - params.padding.x;
  let column = m % params.sums.w * params.stride.y - params.padding.y;
  return Row((r / params.sums.z * params.x_dims.y * params.x_dims.z + y) * params.x_dims.w + column, y, column);
}

fn place_of(k: u32) -> Place {
  var place: Place;
  for (var i = 0u; i < 4u; i++) {
    let byte = 16u * k + 4u * i + vec4<u32>(0u, 1u, 2u, 3u);
    let tap = byte % TAPS;
    place.y[i] = tap / KERNEL_WIDTH * params.dilation.x;
    place.x[i] = tap % KERNEL_WIDTH * params.dilation.y;
    place.first[i] = (byte / TAPS * params.x_dims.z + place.y[i]) * params.x_dims.w + place.x[i];
  }
  return place;
}

fn place_from(found: Place, k: u32) -> Place { return place_of(k); }
fn place_after(place: Place) -> Place { return place; }

fn load_word(row: Row, first: vec4<u32>, y: vec4<u32>, x_step: vec4<u32>) -> u32 {
  let inside = (row.y + y < vec4<u32>(params.x_dims.z)) & (row.x + x_step < vec4<u32>(params.x_dims.w));
  let at = select(vec4<u32>(0u), row.first + first, inside);
  let q = int8_of(vec4<f32>(x[at.x], x[at.y], x[at.z], x[at.w]));
  return pack4xI8(select(vec4<i32>(params.int8_zero), q, inside));
}

fn load_x(row: Row, place: Place) -> vec4<u32> {
  return vec4<u32>(
    load_word(row, place.first[0], place.y[0], place.x[0]),
    load_word(row, place.first[1], place.y[1], place.x[1]),
    load_word(row, place.first[2], place.y[2], place.x[2]),
    load_word(row, place.first[3], place.y[3], place.x[3]));
}
