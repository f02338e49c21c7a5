// As gemm_window for images of one channel: k runs over taps alone, four of them to a word. A pixel's word holds its
// value in lane 0. Taps past the last meet weights of 0.

struct Place { y: array<vec4<u32>, 4>, x: array<vec4<u32>, 4> }

fn place_of(k: u32) -> Place {
  var place: Place;
  for (var i = 0u; i < 4u; i++) {
    let tap = 16u * k + 4u * i + vec4<u32>(0u, 1u, 2u, 3u);
    place.y[i] = tap / params.kernel.y * params.dilation.x;
    place.x[i] = tap % params.kernel.y * params.dilation.y;
  }
  return place;
}

fn load_byte(row: Row, y_step: u32, x_step: u32) -> u32 {
  let y = row.y + y_step;
  let column = row.x + x_step;
  let outside = y >= params.x_dims.z || column >= params.x_dims.w;
  if (BRANCHES && outside) { return params.x_zeros.x & 0xffu; }
  let value = x[(row.image + y) * params.x_dims.w + column];
  return select(value, params.x_zeros.x, !BRANCHES && outside) & 0xffu;
}

fn load_word(row: Row, y: vec4<u32>, x: vec4<u32>) -> u32 {
  return load_byte(row, y.x, x.x) | (load_byte(row, y.y, x.y) << 8u) |
         (load_byte(row, y.z, x.z) << 16u) | (load_byte(row, y.w, x.w) << 24u);
}

fn load_x(row: Row, place: Place) -> vec4<u32> {
  return vec4<u32>(
    load_word(row, place.y[0], place.x[0]),
    load_word(row, place.y[1], place.x[1]),
    load_word(row, place.y[2], place.x[2]),
    load_word(row, place.y[3], place.x[3]));
}
