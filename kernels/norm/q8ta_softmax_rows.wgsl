// Softmax of rows of int8 words, each by a team of threads. Elements count from 0; what takes no part is 0, the least.

// (largest, sum)
alias Partial = vec2<u32>;
fn merge(a: Partial, b: Partial) -> Partial { return Partial(max(a.x, b.x), a.y + b.y); }

// All bits of the elements of word k of a row that take part.
fn part_in_row(row: u32, k: u32) -> u32 {
  let plane = row / params.y_dims.z;
  return bits_of(k) & part_of(vec4<u32>(plane / params.y_dims.y, plane % params.y_dims.y, row % params.y_dims.z, k * 4u));
}

fn elements(word: u32, part: u32) -> vec4<u32> { return unpack4xU8((word ^ 0x80808080u) & part); }

fn take_row(team: Team) {
  let base = team.row * params.items;

  var most = vec4<u32>(0u);
  for (var k = team.lane; k < params.items; k += LANES) { most = max(most, elements(x[base + k], part_in_row(team.row, k))); }
  let largest = reduced(team.thread, Partial(max(max(most.x, most.y), max(most.z, most.w)), 0u)).x;

  var added = 0u;
  for (var k = team.lane; k < params.items; k += LANES) {
    let part = part_in_row(team.row, k);
    let d = largest - elements(x[base + k], part);
    let p = vec4<u32>(power(d.x), power(d.y), power(d.z), power(d.w)) * unpack4xU8(part & 0x01010101u);
    added += p.x + p.y + p.z + p.w;
  }
  let sum = reduced(team.thread, Partial(0u, added)).y;
  if (!team.stores) { return; }
  for (var k = team.lane; k < params.items; k += LANES) {
    let part = part_in_row(team.row, k);
    let d = largest - elements(x[base + k], part);
    let counts = unpack4xU8(part) > vec4<u32>(0u);
    y[base + k] = pack4xI8(vec4<i32>(
      quotient(d.x, sum, counts.x),
      quotient(d.y, sum, counts.y),
      quotient(d.z, sum, counts.z),
      quotient(d.w, sum, counts.w)));
  }
}
