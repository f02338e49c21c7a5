// A team of threads normalizes a row of words: sums of its differences from the zero point and of their squares, then
// every element by their integers (kernels/norm/integers.py defines them).
struct Moments { sum: i32, squares: Wide }
alias Partial = Moments;
fn merge(a: Partial, b: Partial) -> Partial { return Moments(a.sum + b.sum, wide_sum(a.squares, b.squares)); }

// The differences of a word's elements from the zero point, 0 past the end of a line.
fn differences(word: x_Word, k: u32) -> vec4<i32> {
  let within = vec4<u32>(lanes_of(k)) > vec4<u32>(0u, 1u, 2u, 3u);
  return select(vec4<i32>(0), x_lanes(word) - params.x_zero, within);
}

// The sum of four squares: of int8 in one word, of int16 each takes one.
fn narrow_squares(v: vec4<u32>) -> Wide { return Wide(dot(v, v), 0u); }
fn wide_squares(v: vec4<u32>) -> Wide {
  let each = v * v;
  return wide_sum(
    wide_sum(Wide(each.x, 0u), Wide(each.y, 0u)), wide_sum(Wide(each.z, 0u), Wide(each.w, 0u)));
}

// What is taken from C x' and, squared, from C sum x'^2.
fn centered(sum: i32) -> i32 { return sum; }
fn plain(sum: i32) -> i32 { return 0; }

// Where gamma and beta of a word's elements are: those of the row's elements, or of its channels.
fn of_elements(row: u32, k: u32) -> vec4<u32> {
  let first = k / params.line * params.width + k % params.line * 4u;
  return min(first + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(params.length - 1u));
}

fn of_channel(row: u32, k: u32) -> vec4<u32> {
  return vec4<u32>(row % params.groups * params.per_group + k / params.channel_words);
}

fn rounded(difference: i32, mean: i32, root: InverseRoot, at: u32) -> i32 {
  let d = i32(params.length) * difference - mean;
  let size = i32(wide_right(wide_product(u32(abs(d)), root.factor), root.shift).x);
  let v = scaled_accumulator(select(size, -size, d < 0), multiplier[at]) + offset[at];
  return clamp(rte(v, FRACTION) + params.zero, params.lo, params.hi);
}

@compute @workgroup_size(THREADS)
fn main(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) thread: u32,
) {
  let place = first_row(group, groups) + thread / LANES;
  let lane = thread % LANES;
  let row = min(place, params.rows - 1u);
  let base = row * params.items;

  var part = Moments(0, Wide(0u));
  for (var k = lane; k < params.items; k += LANES) {
    let v = differences(x[base + k], k);
    part = merge(part, Moments(v.x + v.y + v.z + v.w, squares(vec4<u32>(abs(v)))));
  }
  let whole = reduced(thread, part);
  if (place >= params.rows) { return; }

  let mean = moments(whole.sum);
  var variance = wide_product(params.length, whole.squares.x) + Wide(0u, params.length * whole.squares.y);
  variance = wide_difference(variance, wide_product(u32(abs(mean)), u32(abs(mean))));
  variance = wide_sum(wide_left(variance, params.fraction), Wide(params.epsilon_low, params.epsilon_high));
  var root = inverse_root(variance);
  root.shift -= params.fraction / 2u + NORMAL;
  for (var k = lane; k < params.items; k += LANES) {
    let v = differences(x[base + k], k);
    let at = parameters_of(row, k);
    y[base + k] = packed(vec4<i32>(
      rounded(v.x, mean, root, at.x),
      rounded(v.y, mean, root, at.y),
      rounded(v.z, mean, root, at.z),
      rounded(v.w, mean, root, at.w)));
  }
}

// Fraction bits of a normal number.
const NORMAL = 20u;
