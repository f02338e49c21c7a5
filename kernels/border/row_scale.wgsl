// A team of threads finds the largest magnitude of a row, and the row's scale (q8ta_wgpu/ir/arithmetic.py defines it).
// magnitude(at, k): of item k of a row, the item `at` of all: of floats their bits, which grow as they do.
alias Partial = u32;
fn merge(a: Partial, b: Partial) -> Partial { return max(a, b); }

fn take_row(team: Team) {
  var largest = 0u;
  for (var k = team.lane; k < params.items; k += LANES) { largest = max(largest, magnitude(team.row * params.items + k, k)); }
  let whole = reduced(team.thread, largest);
  if (team.stores && team.lane == 0u) { y[team.row] = scale_of(units_of(whole)); }
}

// A NaN counts as 0.
fn bits_of_float(v: f32) -> u32 {
  let bits = bitcast<u32>(v) & 0x7fffffffu;
  return select(bits, 0u, bits > 0x7f800000u);
}

fn magnitude_of_float(at: u32, k: u32) -> u32 { return bits_of_float(x[at]); }

fn magnitude_of_four(at: u32, k: u32) -> u32 {
  let v = x[at];
  return max(max(bits_of_float(v.x), bits_of_float(v.y)), max(bits_of_float(v.z), bits_of_float(v.w)));
}

fn magnitude_of_word(at: u32, k: u32) -> u32 {
  let within = vec4<u32>(lanes_of(k)) > vec4<u32>(0u, 1u, 2u, 3u);
  let v = vec4<u32>(abs(select(vec4<i32>(0), x_lanes(x[at]) - params.x_zero, within)));
  return max(max(v.x, v.y), max(v.z, v.w));
}

// The bits of the largest magnitude in units of the scale: of floats 2^-32, of 127 * 2^-32 to 2^75, of integers a step.
fn units_of_float(bits: u32) -> u32 { return clamp(bits, 0x32fe0000u, 0x65000000u) + (32u << 23u); }

fn units_of_steps(largest: u32) -> u32 { return bitcast<u32>(f32(i32(max(largest, 127u)))); }

fn scale_of(bits: u32) -> f32 {
  let mantissa = (bits & 0x7fffffu) | 0x800000u;
  let r = (mantissa + (127u << 10u) - 1u) / (127u << 10u);
  if (r < 128u) { return bitcast<f32>(bitcast<u32>(f32(r)) + (((bits >> 23u) - 140u) << 23u)); }
  let half = (mantissa + (127u << 11u) - 1u) / (127u << 11u);
  return bitcast<f32>(bitcast<u32>(f32(half)) + (((bits >> 23u) - 139u) << 23u));
}
