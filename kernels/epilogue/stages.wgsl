// The stages of an epilogue, each in the form of the hook it fills. stages.py and stages_before_rounding.py define what
// they compute. Without a stage that fills them, `unrounded`, `bent` and `joined` change nothing and `store_joined`
// stores a word.

// --- channel_quad: what belongs to four channels ---

// near.py says how it rounds by additions.
struct Near { multiplier: vec4<f32>, offset: vec4<i32>, low: vec4<f32>, high: vec4<f32>, magic: vec4<f32> }

fn near_quad(quad: u32) -> Near {
  let at = quad * 4u;
  return Near(multiplier[quad], offset[at], bitcast<vec4<f32>>(offset[at + 1u]), bitcast<vec4<f32>>(offset[at + 2u]),
              bitcast<vec4<f32>>(offset[at + 3u]));
}

fn near_from(own: Near, i: u32) -> Near {
  return Near(subgroupShuffle(own.multiplier, i), subgroupShuffle(own.offset, i), subgroupShuffle(own.low, i),
              subgroupShuffle(own.high, i), subgroupShuffle(own.magic, i));
}

struct Scaled { multiplier: vec4<f32>, offset: vec4<f32> }

fn scaled_channels(quad: u32) -> Scaled { return Scaled(multiplier[quad], offset[quad]); }

fn scaled_from(own: Scaled, i: u32) -> Scaled {
  return Scaled(subgroupShuffle(own.multiplier, i), subgroupShuffle(own.offset, i));
}

struct Sloped { multiplier: vec4<f32>, offset: vec4<i32>, slope: vec4<f32> }

fn sloped_quad(quad: u32) -> Sloped {
  return Sloped(multiplier[quad], offset[quad], vec4<f32>(
    slope_of(quad * 4u), slope_of(quad * 4u + 1u), slope_of(quad * 4u + 2u), slope_of(quad * 4u + 3u)));
}

fn sloped_from(own: Sloped, i: u32) -> Sloped {
  return Sloped(subgroupShuffle(own.multiplier, i), subgroupShuffle(own.offset, i), subgroupShuffle(own.slope, i));
}

fn slope_of(channel: u32) -> f32 { return slopes[min(channel, params.channels - 1u)]; }

// --- quad_value: a value of four accumulators, as float32 ---

// near.py says what these are.
fn whole_near(sum: vec4<f32>, channel: Near, residual: ResidualWord) -> vec4<i32> {
  let t = clamp(sum * channel.multiplier, channel.low, channel.high) + channel.magic;
  let v = unrounded(bitcast<vec4<i32>>(t) + channel.offset, residual);
  return whole_quad(near_bounds(bitcast<vec4<f32>>(v)));
}

// Where nothing saturates but what the channel's bounds say.
fn near_bounds(v: vec4<f32>) -> vec4<f32> { return v; }

fn bounded_near(v: vec4<f32>) -> vec4<f32> {
  let ends = (vec2<i32>(params.lo, params.hi) - params.zero) << vec2<u32>(FRACTION);
  let range = bitcast<vec2<f32>>(ends + STEPS_BITS);
  return clamp(v, vec4<f32>(range.x), vec4<f32>(range.y));
}

fn requantized_near(sum: vec4<f32>, channel: Near, residual: ResidualWord) -> vec4<i32> {
  return whole_near(sum, channel, residual) - (WHOLE_BITS - params.zero);
}

fn requantized(sum: vec4<f32>, channel: Channel, residual: ResidualWord) -> vec4<i32> {
  let v = bent(unrounded(scaled_sums(sum, channel.multiplier) + channel.offset, residual), channel);
  return int8_quad(v, FRACTION, params.zero, params.lo, params.hi);
}

fn requantized_int16(sum: vec4<f32>, channel: Channel, residual: ResidualWord) -> vec4<i32> {
  let v = bent(unrounded(scaled_sums(sum, channel.multiplier) + channel.offset, residual), channel);
  return int8_quad(v, INT16_FRACTION, params.zero, params.lo, params.hi);
}

// The bits of floats that are never rounded.
fn scaled(sum: vec4<f32>, channel: Scaled, residual: ResidualWord) -> vec4<i32> {
  return bitcast<vec4<i32>>((sum + channel.offset) * channel.multiplier);
}

// --- residual_of, addend_of: the word that is read for a quad beyond its sums ---

alias ResidualWord = u32;

fn residual_of(m: u32, quad: u32) -> ResidualWord { return ResidualWord(0); }

fn addend_of(m: u32, quad: u32) -> u32 { return 0u; }

// Behind the stage rows: the row's scale, and what else is read.
struct Joins { row: f32, added: AddedWord }

alias AddedWord = u32;

fn joins_of(m: u32, quad: u32) -> Joins { return Joins(rows[m], added_of(m, quad)); }

fn added_of(m: u32, quad: u32) -> AddedWord { return AddedWord(0); }

fn added_word(residual: ResidualWord) -> ResidualWord { return residual; }

fn joined_word(joins: Joins) -> AddedWord { return joins.added; }

fn by_rows(sum: vec4<f32>, channel: Channel, joins: Joins) -> vec4<i32> {
  var own = channel;
  own.multiplier = row_multiplier(channel.multiplier, joins.row);
  return value_by_rows(sum, own, joins);
}

fn scaled_by_rows(sum: vec4<f32>, channel: Scaled, joins: Joins) -> vec4<i32> {
  let offset = round(channel.offset * row_inverse(joins.row, 0u));
  return scaled(sum, Scaled(row_multiplier(channel.multiplier, joins.row), offset), joins);
}

// --- unrounded, bent: what is added to it, and what it becomes, before it is rounded ---

fn unrounded(v: vec4<i32>, residual: ResidualWord) -> vec4<i32> { return v; }

// The residual's zero point is in the channels' offset.
fn plus_residual(v: vec4<i32>, residual: ResidualWord) -> vec4<i32> {
  return v + residual_lanes(added_word(residual)) * params.residual_multiplier;
}

fn plus_scaled_residual(v: vec4<i32>, residual: ResidualWord) -> vec4<i32> {
  return v + scaled_terms(residual_lanes(added_word(residual)) - params.residual_zero, params.residual_multiplier);
}

fn bent(v: vec4<i32>, channel: Channel) -> vec4<i32> { return v; }

fn sloped(v: vec4<i32>, channel: Sloped) -> vec4<i32> {
  return select(v, scaled_quad(v, channel.slope), v < vec4<i32>(0));
}

fn on_curve(v: vec4<i32>, channel: Channel) -> vec4<i32> {
  let within = clamp(v, vec4<i32>(0), vec4<i32>(params.curve_end));
  let at = within >> vec4<u32>(FRACTION);
  let part = within & vec4<i32>((1i << FRACTION) - 1i);
  let start = vec4<i32>(curve[at.x], curve[at.y], curve[at.z], curve[at.w]);
  let end = vec4<i32>(curve[at.x + 1i], curve[at.y + 1i], curve[at.z + 1i], curve[at.w + 1i]);
  return start + (((end - start) * part) >> vec4<u32>(FRACTION));
}

// --- joined: what becomes of the int8 value ---

fn joined(v: vec4<i32>, addend: u32) -> vec4<i32> { return v; }

fn plus_addend(v: vec4<i32>, addend: u32) -> vec4<i32> {
  let other = addend_lanes(addend) * params.addend_multiplier;
  let sum = v * params.inner_multiplier + (other + params.sum_offset);  // wraps on the way, not at its end
  return int8_quad(sum, params.shift, params.sum_zero, params.sum_lo, params.sum_hi);
}

fn times_addend(v: vec4<i32>, addend: u32) -> vec4<i32> {
  let product = (v - params.inner_zero) * (addend_lanes(addend) - params.addend_zero);
  let limit = vec4<f32>(STEPS_LIMIT);
  let steps = vec4<i32>(round(clamp(vec4<f32>(product) * params.product_multiplier, -limit, limit)));
  return clamp(steps + params.sum_zero, vec4<i32>(params.sum_lo), vec4<i32>(params.sum_hi));
}

fn in_table(v: vec4<i32>, addend: u32) -> vec4<i32> {
  return vec4<i32>(looked_up(v.x), looked_up(v.y), looked_up(v.z), looked_up(v.w));
}

fn looked_up(v: i32) -> i32 { return lane(table[u32(v + 128) / 4u], u32(v + 128) % 4u); }

// --- quad_places, store_joined: where and as what the result is written ---

// Of float32 results, where the channels of a quad lie behind a pixel's first: kernels of many pixels ask once.
fn quad_places(quad: u32) -> vec4<u32> { return vec4<u32>(0u); }

fn real_places(quad: u32) -> vec4<u32> {
  let channel = quad * 4u;
  return vec4<u32>(channel_place(channel), channel_place(channel + 1u), channel_place(channel + 2u),
                   channel_place(channel + 3u));
}

fn store_joined(v: vec4<i32>, m: u32, quad: u32, places: vec4<u32>) { y[y_quad(m, quad)] = word_joined(v); }

fn word_joined(v: vec4<i32>) -> Word { return packed(v); }

fn word_near(v: vec4<i32>) -> Word { return packed_whole(v, params.zero); }

fn store_dequantized(v: vec4<i32>, m: u32, quad: u32, places: vec4<u32>) {
  store_real(vec4<f32>(v - params.real_zero) * params.real_scale, m, quad, places);
}

fn store_scaled(v: vec4<i32>, m: u32, quad: u32, places: vec4<u32>) {
  store_real(bitcast<vec4<f32>>(v), m, quad, places);
}

fn store_real(v: vec4<f32>, m: u32, quad: u32, places: vec4<u32>) {
  let first = first_place(m);
  for (var i = 0u; i < 4u; i++) {
    if (quad * 4u + i < params.channels) { y[first + places[i]] = v[i]; }
  }
}
