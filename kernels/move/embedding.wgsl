// An element of the row at a computed index.
// Uses gather.
fn compute(p: vec4<u32>) -> f32 {
  let row = index_within(vec4<u32>(0u, 0u, p.z, 0u), params.last);
  return f32(element_of(row, p.w)) * scale[row];
}

fn element_of(row: u32, column: u32) -> i32 {
  let at = row * params.width + column;
  return lane(rows[at / 4u], at % 4u);
}

fn element_of_int16(row: u32, column: u32) -> i32 {
  let at = row * params.width + column;
  return extractBits(i32(rows[at / 2u]), at % 2u * 16u, 16u);
}

// An element of a row of 4 bits. A group has its factor in a byte, then two numbers in each byte
// (q8ta_wgpu/ir/bits.py).
fn element_of_bits(row: u32, column: u32) -> i32 {
  let group = 2u * (params.group_bytes - 1u);
  let first = (row * params.groups + column / group) * params.group_bytes;
  let at = first + 1u + column % group / 2u;
  let number = extractBits(i32(rows[at / 4u]), at % 4u * 8u + column % 2u * 4u, 4u);
  return lane(rows[first / 4u], first % 4u) * number;
}
