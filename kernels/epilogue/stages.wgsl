// The stages of an epilogue, each in the form of the hook it fills. stages.py and stages_before_rounding.py define what
// they compute. Without a stage that fills them, `before_rounding`, `activated` and `after_rounding` change nothing,
// and `store_result` stores a word.
// Uses magic_rounding.

// --- numbers_of: the numbers of four channels that round; numbers_from: those that thread i of the subgroup has ---

struct Numbers { multiplier: vec4<f32>, offset: vec4<i32> }

fn numbers_of(quad: u32) -> Numbers { return Numbers(multiplier[quad], offset[quad]); }

fn numbers_from(own: Numbers, i: u32) -> Numbers {
  return Numbers(subgroupShuffle(own.multiplier, i), subgroupShuffle(own.offset, i));
}

// magic_rounding.py says how it rounds by additions.
struct MagicNumbers { multiplier: vec4<f32>, offset: vec4<i32>, low: vec4<f32>, high: vec4<f32>, magic: vec4<f32> }

fn magic_numbers(quad: u32) -> MagicNumbers {
  let at = quad * 4u;
  return MagicNumbers(multiplier[quad], offset[at], bitcast<vec4<f32>>(offset[at + 1u]), bitcast<vec4<f32>>(offset[at + 2u]),
              bitcast<vec4<f32>>(offset[at + 3u]));
}

fn magic_from(own: MagicNumbers, i: u32) -> MagicNumbers {
  return MagicNumbers(subgroupShuffle(own.multiplier, i), subgroupShuffle(own.offset, i), subgroupShuffle(own.low, i),
              subgroupShuffle(own.high, i), subgroupShuffle(own.magic, i));
}

struct RealNumbers { multiplier: vec4<f32>, offset: vec4<f32> }

fn real_numbers(quad: u32) -> RealNumbers { return RealNumbers(multiplier[quad], offset[quad]); }

fn real_from(own: RealNumbers, i: u32) -> RealNumbers {
  return RealNumbers(subgroupShuffle(own.multiplier, i), subgroupShuffle(own.offset, i));
}

// --- for_row: the numbers where each row of the sum's operand has a scale of its own ---

fn for_row(channel: Channel, residual: ResidualWord) -> Channel { return channel; }

fn numbers_for_row(channel: Channel, operands: RowOperands) -> Channel {
  var own = channel;
  own.numbers.multiplier = row_multiplier(channel.numbers.multiplier, operands.row);
  own.numbers.offset = offset_for_row(channel.numbers.offset, operands.row);
  return own;
}

fn offset_for_row(offset: vec4<i32>, row: f32) -> vec4<i32> { return offset; }

fn real_offset_for_row(offset: vec4<f32>, row: f32) -> vec4<f32> { return round(offset * row_inverse(row, 0u)); }

// --- rounded: values of four accumulators, given as float32 ---

// magic_rounding.py says what these are.
fn magic_rounded(sum: vec4<f32>, channel: Channel, residual: ResidualWord) -> vec4<i32> {
  let t = clamp(sum * channel.numbers.multiplier, channel.numbers.low, channel.numbers.high) + channel.numbers.magic;
  let v = activated_bits(before_rounding(bitcast<vec4<i32>>(t) + channel.numbers.offset, residual));
  return whole_quad(magic_bounds(bitcast<vec4<f32>>(v)));
}

// Without a residual, the bounds of the channel are those of the result.
fn magic_bounds(v: vec4<f32>) -> vec4<f32> { return v; }

fn bounded_by_range(v: vec4<f32>) -> vec4<f32> {
  let ends = (vec2<i32>(params.lo, params.hi) - params.zero) << vec2<u32>(FRACTION);
  let range = bitcast<vec2<f32>>(ends + STEPS_BITS);
  return clamp(v, vec4<f32>(range.x), vec4<f32>(range.y));
}

fn requantized_by_magic(sum: vec4<f32>, channel: Channel, residual: ResidualWord) -> vec4<i32> {
  return magic_rounded(sum, channel, residual) - (WHOLE_BITS - params.zero);
}

fn requantized(sum: vec4<f32>, channel: Channel, residual: ResidualWord) -> vec4<i32> {
  let v = activated(before_rounding(scaled_sums(sum, channel.numbers.multiplier) + channel.numbers.offset, residual), channel);
  return int8_quad(v, FRACTION, params.zero, params.lo, params.hi);
}

fn requantized_int16(sum: vec4<f32>, channel: Channel, residual: ResidualWord) -> vec4<i32> {
  let v = activated(before_rounding(scaled_sums(sum, channel.numbers.multiplier) + channel.numbers.offset, residual), channel);
  return int8_quad(v, INT16_FRACTION, params.zero, params.lo, params.hi);
}

// A float32 result is not rounded: its bits are passed on as integers.
fn scaled(sum: vec4<f32>, channel: Channel, residual: ResidualWord) -> vec4<i32> {
  return bitcast<vec4<i32>>((sum + channel.numbers.offset) * channel.numbers.multiplier);
}

// --- residual_of, addend_of: the words of other operands that are read for a quad ---

alias ResidualWord = AddedWord;
alias AddedWord = u32;

fn residual_of(m: u32, quad: u32) -> ResidualWord { return added_of(m, quad); }
fn added_of(m: u32, quad: u32) -> AddedWord { return AddedWord(0); }
fn added_word(residual: ResidualWord) -> AddedWord { return residual; }

fn addend_of(m: u32, quad: u32) -> u32 { return 0u; }

// With the stage `rows`, the row's scale is read beside the residual's word.
struct RowOperands { row: f32, added: AddedWord }

fn row_operands_of(m: u32, quad: u32) -> RowOperands { return RowOperands(rows[m], added_of(m, quad)); }
fn row_added_word(operands: RowOperands) -> AddedWord { return operands.added; }

// --- before_rounding, activated: a residual and an activation, before the sum is rounded ---

fn before_rounding(v: vec4<i32>, residual: ResidualWord) -> vec4<i32> { return v; }

// The residual's zero point is in the channels' offset.
fn plus_residual(v: vec4<i32>, residual: ResidualWord) -> vec4<i32> {
  return v + residual_lanes(added_word(residual)) * params.residual_multiplier;
}

fn plus_scaled_residual(v: vec4<i32>, residual: ResidualWord) -> vec4<i32> {
  return v + scaled_terms(residual_lanes(added_word(residual)) - params.residual_zero, params.residual_multiplier);
}

fn activated(v: vec4<i32>, channel: Channel) -> vec4<i32> { return v; }

fn prelu(v: vec4<i32>, channel: Channel) -> vec4<i32> {
  return select(v, scaled_quad(v, channel.slopes), v < vec4<i32>(0));
}

fn on_curve(v: vec4<i32>, channel: Channel) -> vec4<i32> {
  return curve_at(clamp(v, vec4<i32>(0), vec4<i32>(params.curve_end)));
}

fn curve_at(within: vec4<i32>) -> vec4<i32> {
  let at = within >> vec4<u32>(params.curve_bits);
  let part = within & vec4<i32>((1i << params.curve_bits) - 1i);
  let start = vec4<i32>(curve[at.x], curve[at.y], curve[at.z], curve[at.w]);
  let end = vec4<i32>(curve[at.x + 1i], curve[at.y + 1i], curve[at.z + 1i], curve[at.w + 1i]);
  return start + (((end - start) * part) >> vec4<u32>(params.curve_bits));
}

// The same of the bits of floats that are 1.5 * 2^23 larger. Such floats have the order of their bits.
fn activated_bits(v: vec4<i32>) -> vec4<i32> { return v; }

fn bits_on_curve(v: vec4<i32>) -> vec4<i32> {
  let ends = bitcast<vec2<f32>>(vec2<i32>(0, params.curve_end) + STEPS_BITS);
  let within = clamp(bitcast<vec4<f32>>(v), vec4<f32>(ends.x), vec4<f32>(ends.y));
  return curve_at(bitcast<vec4<i32>>(within) - STEPS_BITS) + STEPS_BITS;
}

// --- after_rounding: what is computed from the int8 value ---

fn after_rounding(v: vec4<i32>, addend: u32) -> vec4<i32> { return v; }

fn plus_addend(v: vec4<i32>, addend: u32) -> vec4<i32> {
  let other = addend_lanes(addend) * params.addend_multiplier;
  let sum = v * params.inner_multiplier + (other + params.sum_offset);  // wraps on the way, not at its end
  return int8_quad(sum, params.shift, params.sum_zero, params.sum_lo, params.sum_hi);
}

fn times_addend(v: vec4<i32>, addend: u32) -> vec4<i32> {
  let product = (v - params.inner_zero) * (addend_lanes(addend) - params.addend_zero);
  let range = vec2<f32>(vec2<i32>(params.sum_lo, params.sum_hi) - params.sum_zero);
  let steps = clamp(vec4<f32>(product) * params.product_multiplier, vec4<f32>(range.x), vec4<f32>(range.y));
  return bitcast<vec4<i32>>(steps + vec4<f32>(bitcast<f32>(STEPS_BITS))) - (STEPS_BITS - params.sum_zero);
}

fn in_table(v: vec4<i32>, addend: u32) -> vec4<i32> {
  return vec4<i32>(table_entry(v.x), table_entry(v.y), table_entry(v.z), table_entry(v.w));
}

fn table_entry(v: i32) -> i32 { return lane(table[u32(v + 128) / 4u], u32(v + 128) % 4u); }

// --- quad_offsets, store_result: where the result is stored, and in which dtype ---

// For float32 results, the offsets of a quad's channels from the pixel's first channel. Kernels that make several
// pixels compute them once.
fn quad_offsets(quad: u32) -> vec4<u32> { return vec4<u32>(0u); }

fn float_offsets(quad: u32) -> vec4<u32> {
  let channel = quad * 4u;
  return vec4<u32>(channel_offset(channel), channel_offset(channel + 1u), channel_offset(channel + 2u),
                   channel_offset(channel + 3u));
}

fn store_result(v: vec4<i32>, m: u32, quad: u32, offsets: vec4<u32>) { y[y_quad(m, quad)] = packed_result(v); }

fn packed_result(v: vec4<i32>) -> Word { return packed(v); }

fn packed_magic(v: vec4<i32>) -> Word { return packed_whole(v, params.zero); }

fn store_dequantized(v: vec4<i32>, m: u32, quad: u32, offsets: vec4<u32>) {
  store_real(vec4<f32>(v - params.real_zero) * params.real_scale, m, quad, offsets);
}

fn store_scaled(v: vec4<i32>, m: u32, quad: u32, offsets: vec4<u32>) {
  store_real(bitcast<vec4<f32>>(v), m, quad, offsets);
}

fn store_real(v: vec4<f32>, m: u32, quad: u32, offsets: vec4<u32>) {
  let first = first_index(m);
  for (var i = 0u; i < 4u; i++) {
    if (quad * 4u + i < params.channels) { y[first + offsets[i]] = v[i]; }
  }
}
