// Softmax of rows of int8 words: a team of threads computes a row. Elements are shifted to 0..255; masked ones are 0,
// the smallest.
// Uses q8ta_softmax.

// (largest, sum)
alias Partial = vec2<u32>;
fn merge(a: Partial, b: Partial) -> Partial { return Partial(max(a.x, b.x), a.y + b.y); }

// A mask with all bits of the elements of word k of a row that are neither masked nor padding.
fn unmasked_in_row(row: u32, k: u32) -> u32 {
  let plane = row / params.y_dims.z;
  return bits_of(k) & unmasked_bits(vec4<u32>(plane / params.y_dims.y, plane % params.y_dims.y, row % params.y_dims.z, k * 4u));
}

fn elements(word: u32, unmasked: u32) -> vec4<u32> { return unpack4xU8((word ^ 0x80808080u) & unmasked); }

fn take_row(team: Team) {
  let base = team.row * params.items;

  var most = vec4<u32>(0u);
  for (var k = team.lane; k < params.items; k += LANES) { most = max(most, elements(x[base + k], unmasked_in_row(team.row, k))); }
  let largest = reduced(team.thread, Partial(max(max(most.x, most.y), max(most.z, most.w)), 0u)).x;

  var added = 0u;
  for (var k = team.lane; k < params.items; k += LANES) {
    let unmasked = unmasked_in_row(team.row, k);
    let d = largest - elements(x[base + k], unmasked);
    let p = vec4<u32>(power(d.x), power(d.y), power(d.z), power(d.w)) * unpack4xU8(unmasked & 0x01010101u);
    added += p.x + p.y + p.z + p.w;
  }
  let sum = reduced(team.thread, Partial(0u, added)).y;
  if (!team.stores) { return; }
  for (var k = team.lane; k < params.items; k += LANES) {
    let unmasked = unmasked_in_row(team.row, k);
    let d = largest - elements(x[base + k], unmasked);
    let lanes = unpack4xU8(unmasked) > vec4<u32>(0u);
    y[base + k] = pack4xI8(vec4<i32>(
      quotient(d.x, sum, lanes.x),
      quotient(d.y, sum, lanes.y),
      quotient(d.z, sum, lanes.z),
      quotient(d.w, sum, lanes.w)));
  }
}
