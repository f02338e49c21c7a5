// Rows of x as im2col would lay them out, from planes of floats that are quantized while loading: k runs over (channel,
// tap) in bytes, as weights lie. Bytes past the last meet weights of 0. Linked: TAPS and KERNEL_WIDTH, constants so
// that divisions by them are cheap; int8_of (quantize).

struct Row { first: u32, y: u32, x: u32 }
struct KOffset { first: array<vec4<u32>, 4>, y: array<vec4<u32>, 4>, x: array<vec4<u32>, 4> }

fn row_of(m: u32) -> Row {
  let r = m / params.sums.w;
  let y = r % params.sums.z * params.stride.x - params.padding.x;
  let column = m % params.sums.w * params.stride.y - params.padding.y;
  return Row((r / params.sums.z * params.x_dims.y * params.x_dims.z + y) * params.x_dims.w + column, y, column);
}

fn k_offset_of(k: u32) -> KOffset {
  var k_offset: KOffset;
  for (var i = 0u; i < 4u; i++) {
    let byte = 16u * k + 4u * i + vec4<u32>(0u, 1u, 2u, 3u);
    let tap = byte % TAPS;
    k_offset.y[i] = tap / KERNEL_WIDTH * params.dilation.x;
    k_offset.x[i] = tap % KERNEL_WIDTH * params.dilation.y;
    k_offset.first[i] = (byte / TAPS * params.x_dims.z + k_offset.y[i]) * params.x_dims.w + k_offset.x[i];
  }
  return k_offset;
}

fn k_offset_from(found: KOffset, k: u32) -> KOffset { return k_offset_of(k); }
fn k_offset_after(k_offset: KOffset) -> KOffset { return k_offset; }

fn load_word(row: Row, first: vec4<u32>, y: vec4<u32>, x_step: vec4<u32>) -> u32 {
  let inside = (row.y + y < vec4<u32>(params.x_dims.z)) & (row.x + x_step < vec4<u32>(params.x_dims.w));
  let at = select(vec4<u32>(0u), row.first + first, inside);
  let q = int8_of(vec4<f32>(x[at.x], x[at.y], x[at.z], x[at.w]));
  return pack4xI8(select(vec4<i32>(params.int8_zero), q, inside));
}

fn load_x(row: Row, k_offset: KOffset) -> RowVector {
  return RowVector(
    load_word(row, k_offset.first[0], k_offset.y[0], k_offset.x[0]),
    load_word(row, k_offset.first[1], k_offset.y[1], k_offset.x[1]),
    load_word(row, k_offset.first[2], k_offset.y[2], k_offset.x[2]),
    load_word(row, k_offset.first[3], k_offset.y[3], k_offset.x[3]));
}
