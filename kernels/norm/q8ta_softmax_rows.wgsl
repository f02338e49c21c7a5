// Softmax of rows of words: a team of threads computes a row.
// Uses q8ta_softmax.
struct Partial { largest: i32, sum: Wide }
fn merge(a: Partial, b: Partial) -> Partial { return Partial(max(a.largest, b.largest), wide_sum(a.sum, b.sum)); }

// Which elements of word k of a row are neither masked nor padding.
fn unmasked_lanes(row: u32, k: u32) -> vec4<bool> {
  let plane = row / params.y_dims.z;
  let p = vec4<u32>(plane / params.y_dims.y, plane % params.y_dims.y, row % params.y_dims.z, k * 4u);
  return unpack4xU8(bits_of(k) & unmasked_bits(p)) > vec4<u32>(0u);
}

// The powers of a word's elements; 0 for masked ones.
fn word_powers(word: x_Word, largest: i32, unmasked: vec4<bool>) -> vec4<u32> {
  let d = vec4<u32>(max(vec4<i32>(largest) - x_lanes(word), vec4<i32>(0)));
  return select(vec4<u32>(0u), vec4<u32>(power_at(d.x), power_at(d.y), power_at(d.z), power_at(d.w)), unmasked);
}

fn take_row(team: Team) {
  let base = team.row * params.items;

  var most = vec4<i32>(LEAST);
  for (var k = team.lane; k < params.items; k += LANES) {
    most = max(most, select(vec4<i32>(LEAST), x_lanes(x[base + k]), unmasked_lanes(team.row, k)));
  }
  let largest = reduced(team.thread, Partial(max(max(most.x, most.y), max(most.z, most.w)), Wide(0u))).largest;

  var added = Wide(0u);
  for (var k = team.lane; k < params.items; k += LANES) {
    let p = word_powers(x[base + k], largest, unmasked_lanes(team.row, k));
    added = wide_sum(added, wide_sum(wide_sum(Wide(p.x, 0u), Wide(p.y, 0u)), wide_sum(Wide(p.z, 0u), Wide(p.w, 0u))));
  }
  let sum = reduced(team.thread, Partial(LEAST, added)).sum;
  let factor = factor_of(total_of(sum));
  if (!team.stores) { return; }
  for (var k = team.lane; k < params.items; k += LANES) {
    let found = word_powers(x[base + k], largest, unmasked_lanes(team.row, k));
    let p = select(found, vec4<u32>(power_at(0u)), is_even(sum));
    y[base + k] = packed(vec4<i32>(
      weight_of_power(p.x, factor), weight_of_power(p.y, factor), weight_of_power(p.z, factor), weight_of_power(p.w, factor)));
  }
}
