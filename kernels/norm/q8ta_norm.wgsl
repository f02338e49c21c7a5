// A team of threads normalizes a row of words: sums of its differences from the zero point and of their squares, then
// every element by their integers (kernels/norm/integers.py defines them), rounded from 2^-ROUNDED of the result's steps.
struct Moments { sum: Sum, squares: Wide }
alias Partial = Moments;
fn merge(a: Partial, b: Partial) -> Partial { return Moments(sums(a.sum, b.sum), wide_sum(a.squares, b.squares)); }

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
fn centered(sum: Sum) -> Sum { return sum; }
fn plain(sum: Sum) -> Sum { return Sum(); }

// Gamma and beta of a word's elements: those of the row's elements, read whole where lines are whole words, or of its
// channel.
struct Affine { multiplier: vec4<f32>, offset: vec4<i32> }

fn of_words(row: u32, k: u32) -> Affine { return Affine(multiplier[k], offset[k]); }

fn of_elements(row: u32, k: u32) -> Affine {
  let first = k / params.line * params.width + k % params.line * 4u;
  let at = min(first + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(params.length - 1u));
  return Affine(vec4<f32>(multiplier[at.x], multiplier[at.y], multiplier[at.z], multiplier[at.w]),
                vec4<i32>(offset[at.x], offset[at.y], offset[at.z], offset[at.w]));
}

fn of_channel(row: u32, k: u32) -> Affine {
  let at = row % params.groups * params.per_group + k / params.channel_words;
  return Affine(vec4<f32>(multiplier[at]), vec4<i32>(offset[at]));
}

// factor * 2^up / 2^(32 + down): what a row's differences from its mean are multiplied with, neither of them lost bits of.
struct Factor { factor: u32, up: u32, down: u32 }

fn factor_of(root: InverseRoot) -> Factor {
  let shift = root.shift - (params.fraction / 2u + params.normal_bits);
  return Factor(root.factor, 32u - min(shift, 32u), max(shift, 32u) - 32u);
}

// A normal number is below 2^30 in its fraction bits, so a difference shifted up is below 2^32.
fn rounded(differences: vec4<i32>, mean: i32, by: Factor, affine: Affine) -> vec4<i32> {
  let d = distances(differences, mean);
  let size = vec4<i32>(high_words(vec4<u32>(abs(d)) << vec4<u32>(by.up), by.factor) >> vec4<u32>(by.down));
  let v = scaled_quad(select(size, -size, d < vec4<i32>(0)), affine.multiplier) + affine.offset;
  return int8_quad(v, ROUNDED, params.zero, params.lo, params.hi);
}

fn take_row(team: Team) {
  let base = team.row * params.items;

  var part = Moments(Sum(), Wide(0u));
  for (var k = team.lane; k < params.items; k += LANES) {
    let v = differences(x[base + k], k);
    part = merge(part, Moments(as_sum(v.x + v.y + v.z + v.w), squares(vec4<u32>(abs(v)))));
  }
  let whole = reduced(team.thread, part);
  if (!team.stores) { return; }

  let sum = moments(whole.sum);
  let mean = mean_of(sum);
  var variance = variance_of(whole.squares, sum);
  variance = wide_sum(wide_left(variance, params.fraction), Wide(params.epsilon_low, params.epsilon_high));
  let by = factor_of(inverse_root(variance));
  for (var k = team.lane; k < params.items; k += LANES) {
    y[base + k] = packed(rounded(differences(x[base + k], k), mean, by, affine_of(team.row, k)));
  }
}
