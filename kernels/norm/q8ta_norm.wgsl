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

// What a row's elements are normalized by.
struct Normal { mean: i32, by: Factor }

fn moments_of(differences: vec4<i32>) -> Moments {
  let v = differences;
  return Moments(as_sum(v.x + v.y + v.z + v.w), squares(vec4<u32>(abs(v))));
}

fn normal_of(whole: Moments) -> Normal {
  let sum = moments(whole.sum);
  let variance = wide_left(variance_of(whole.squares, sum), params.fraction);
  let by = factor_of(inverse_root(wide_sum(variance, Wide(params.epsilon_low, params.epsilon_high))));
  return Normal(mean_of(sum), by);
}

// Normal numbers times gamma and with beta, in 2^-ROUNDED of the result's steps. A normal number is below 2^30 in its
// fraction bits, so a difference shifted up is below 2^32.
fn normalized(differences: vec4<i32>, normal: Normal, affine: Affine) -> vec4<i32> {
  let d = distances(differences, normal.mean);
  let by = normal.by;
  let size = vec4<i32>(high_words(vec4<u32>(abs(d)) << vec4<u32>(by.up), by.factor) >> vec4<u32>(by.down));
  return scaled_quad(select(size, -size, d < vec4<i32>(0)), affine.multiplier) + affine.offset;
}

fn rounded_row(v: vec4<i32>) -> Word { return packed(int8_quad(v, ROUNDED, params.zero, params.lo, params.hi)); }

fn streamed_row(team: Team) {
  let base = team.row * params.items;

  var part = Moments(Sum(), Wide(0u));
  for (var k = team.lane; k < params.items; k += LANES) { part = merge(part, moments_of(differences(x[base + k], k))); }
  let whole = reduced(team.thread, part);
  if (!team.stores) { return; }

  let normal = normal_of(whole);
  for (var k = team.lane; k < params.items; k += LANES) {
    y[base + k] = rounded_row(normalized(differences(x[base + k], k), normal, affine_of(team.row, k)));
  }
}

// The same of few rows, which wait for memory rather than compute: a thread reads all that it needs at first.
fn held_row(team: Team) {
  let base = team.row * params.items;

  var held: array<vec4<i32>, HELD>;
  var affines: array<Affine, HELD>;
  var part = Moments(Sum(), Wide(0u));
  for (var i = 0u; i < HELD; i++) {
    let k = i * LANES + team.lane;
    if (k < params.items) {
      held[i] = differences(x[base + k], k);
      affines[i] = affine_of(team.row, k);
    }
  }
  for (var i = 0u; i < HELD; i++) {
    if (i * LANES + team.lane < params.items) { part = merge(part, moments_of(held[i])); }
  }
  let whole = reduced(team.thread, part);
  if (!team.stores) { return; }

  let normal = normal_of(whole);
  for (var i = 0u; i < HELD; i++) {
    let k = i * LANES + team.lane;
    if (k < params.items) { y[base + k] = rounded_row(normalized(held[i], normal, affines[i])); }
  }
}
