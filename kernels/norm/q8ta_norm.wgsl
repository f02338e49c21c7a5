// A team of threads normalizes a row of words. It sums the differences from the zero point and their squares. From the
// sums it computes normalized numbers (kernels/norm/integers.py defines them), which are rounded from 2^-ROUNDED of the
// result's steps.
struct Moments { sum: Sum, squares: Wide }
alias Partial = Moments;
fn merge(a: Partial, b: Partial) -> Partial { return Moments(sums(a.sum, b.sum), wide_sum(a.squares, b.squares)); }

// The differences of a word's elements from the zero point. Padding lanes count as 0.
fn differences(word: x_Word, k: u32) -> vec4<i32> {
  let within = vec4<u32>(lanes_of(k)) > vec4<u32>(0u, 1u, 2u, 3u);
  return select(vec4<i32>(0), x_lanes(word) - params.x_zero, within);
}

// The sum of four squares. For int8 it fits a word; for int16 each square takes a word.
fn squares_int8(v: vec4<u32>) -> Wide { return Wide(dot(v, v), 0u); }
fn squares_int16(v: vec4<u32>) -> Wide {
  let each = v * v;
  return wide_sum(
    wide_sum(Wide(each.x, 0u), Wide(each.y, 0u)), wide_sum(Wide(each.z, 0u), Wide(each.w, 0u)));
}

// The sum that is subtracted from C x', and whose square is subtracted from C sum x'^2: 0 for a root mean square.
fn centered(sum: Sum) -> Sum { return sum; }
fn plain(sum: Sum) -> Sum { return Sum(); }

// gamma and beta of a word's elements: those of each element of the row, read as vectors if lines are merged words, or
// those of a channel.
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

// factor * 2^up / 2^(32 + down), the factor of a row's differences from its mean. The shifts lose no bits of it.
struct Factor { factor: u32, up: u32, down: u32 }

fn factor_of(root: InverseRoot) -> Factor {
  let shift = root.shift - (params.fraction / 2u + params.normal_bits);
  return Factor(root.factor, 32u - min(shift, 32u), max(shift, 32u) - 32u);
}

// The numbers by which a row's elements are normalized.
struct Normal { mean: i32, by: Factor }

fn moments_of(differences: vec4<i32>) -> Moments {
  let v = differences;
  return Moments(as_sum(v.x + v.y + v.z + v.w), squares(vec4<u32>(abs(v))));
}

fn normal_of(merged: Moments) -> Normal {
  let sum = moments(merged.sum);
  let variance = wide_left(variance_of(merged.squares, sum), params.fraction);
  let by = factor_of(inverse_root(wide_sum(variance, Wide(params.epsilon_low, params.epsilon_high))));
  return Normal(mean_of(sum), by);
}

// Normalized numbers times gamma plus beta, in 2^-ROUNDED of the result's steps. A normalized number is below 2^30, so
// a difference shifted by `up` is below 2^32.
fn normalized(differences: vec4<i32>, normal: Normal, affine: Affine) -> vec4<i32> {
  let d = distances(differences, normal.mean);
  let by = normal.by;
  let size = vec4<i32>(high_words(vec4<u32>(abs(d)) << vec4<u32>(by.up), by.factor) >> vec4<u32>(by.down));
  return scaled_quad(select(size, -size, d < vec4<i32>(0)), affine.multiplier * params.factor) + affine.offset;
}

fn rounded_row(v: vec4<i32>) -> Word { return packed(int8_quad(v, ROUNDED, params.zero, params.lo, params.hi)); }

fn streamed_row(team: Team) {
  let base = team.row * params.items;

  var own = Moments(Sum(), Wide(0u));
  for (var k = team.lane; k < params.items; k += LANES) { own = merge(own, moments_of(differences(x[base + k], k))); }
  let merged = reduced(team.thread, own);
  if (!team.stores) { return; }

  let normal = normal_of(merged);
  for (var k = team.lane; k < params.items; k += LANES) {
    y[base + k] = rounded_row(normalized(differences(x[base + k], k), normal, affine_of(team.row, k)));
  }
}

// The same for few rows, whose time is the latency of memory: a thread first loads everything that it needs.
fn held_row(team: Team) {
  let base = team.row * params.items;

  var held: array<vec4<i32>, HELD>;
  var affines: array<Affine, HELD>;
  var own = Moments(Sum(), Wide(0u));
  for (var i = 0u; i < HELD; i++) {
    let k = i * LANES + team.lane;
    if (k < params.items) {
      held[i] = differences(x[base + k], k);
      affines[i] = affine_of(team.row, k);
    }
  }
  for (var i = 0u; i < HELD; i++) {
    if (i * LANES + team.lane < params.items) { own = merge(own, moments_of(held[i])); }
  }
  let merged = reduced(team.thread, own);
  if (!team.stores) { return; }

  let normal = normal_of(merged);
  for (var i = 0u; i < HELD; i++) {
    let k = i * LANES + team.lane;
    if (k < params.items) { y[base + k] = rounded_row(normalized(held[i], normal, affines[i])); }
  }
}
