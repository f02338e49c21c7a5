// A team of threads computes the largest magnitude of a row, and from it the row's scale (q8ta_wgpu/ir/arithmetic.py
// defines it). magnitude(at, k) is the largest magnitude in item k of a row, whose index among all items is `at`. The
// magnitude of a float is its bits, which have the same order.
alias Partial = u32;
fn merge(a: Partial, b: Partial) -> Partial { return max(a, b); }

fn take_row(team: Team) {
  var largest = 0u;
  for (var k = team.lane; k < params.items; k += LANES) { largest = max(largest, magnitude(team.row * params.items + k, k)); }
  let merged = reduced(team.thread, largest);
  if (team.stores && team.lane == 0u) { y[team.row] = scale_of(scaled_magnitude(merged)); }
}

// NaN counts as 0.
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

// The bits of the largest magnitude as a float, in the numbers that a scale counts: 2^-32 for floats, which are clamped
// to 127 * 2^-32..2^75, and steps for integers.
fn scaled_float(bits: u32) -> u32 { return clamp(bits, 0x32fe0000u, 0x65000000u) + (32u << 23u); }

fn scaled_steps(largest: u32) -> u32 { return bitcast<u32>(f32(i32(max(largest, 127u)))); }

fn scale_of(bits: u32) -> f32 {
  let mantissa = (bits & 0x7fffffu) | 0x800000u;
  let r = (mantissa + (127u << 10u) - 1u) / (127u << 10u);
  if (r < 128u) { return bitcast<f32>(bitcast<u32>(f32(r)) + (((bits >> 23u) - 140u) << 23u)); }
  let half = (mantissa + (127u << 11u) - 1u) / (127u << 11u);
  return bitcast<f32>(bitcast<u32>(f32(half)) + (((bits >> 23u) - 139u) << 23u));
}
