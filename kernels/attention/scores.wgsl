// The arithmetic of attention: scores from sums, the inverse of a sum of weights, and the result from sums.
// Uses magic_rounding.

// LEAST is lower than any score by more than all distances. EXCLUDED is the score of an element without weight. Masked
// elements have either score, params.masked_score: with LEAST, a row of masked elements has equal weights.
const LEAST = -0x20000000i;
const EXCLUDED = -0x40000000i;
const BYTES = 0x01010101u;

// The word at which a head's matrix begins.
fn first_word(strides: vec4<u32>, batch: u32, head: u32) -> u32 {
  return strides.x + batch * strides.y + head * strides.z;
}

fn packed_bytes(v: vec4<u32>) -> u32 { return v.x | (v.y << 8u) | (v.z << 16u) | (v.w << 24u); }

// The scores of four keys in steps, from sums of (query - zero)(key - zero). p is the batch, head, query and key of the
// first. Adding 1.5 * 2^23 rounds half to even (kernels/epilogue/magic_rounding.py). The clamp between the product and
// the addition keeps compilers from fusing them.
fn scores_of(sum: vec4<i32>, p: vec4<u32>) -> vec4<i32> {
  let scaled = clamp(vec4<f32>(sum) * params.score_multiplier, vec4<f32>(-4194304.0), vec4<f32>(4194304.0));
  let steps = bitcast<vec4<i32>>(scaled + vec4<f32>(12582912.0)) - vec4<i32>(0x4b400000);
  let inside = p.w + vec4<u32>(0u, 1u, 2u, 3u) < vec4<u32>(params.keys);
  let unmasked = unpack4xU8(unmasked_bits(p)) > vec4<u32>(0u);
  return select(vec4<i32>(EXCLUDED), select(vec4<i32>(params.masked_score), biased(steps, p), unmasked), inside);
}

// The index after the last word with an unmasked element, among the words of one thread, or 0. `team` threads share a
// row. Four loads are in flight at a time.
fn unmasked_end(row: vec3<u32>, thread: u32, team: u32) -> u32 {
  let words = (params.keys + 3u) / 4u;
  if (params.mask_dims.w == 1u) { return words; }
  let start = mask_index(mask_coord(vec4<u32>(row, 0u)));
  let lanes = 0xffffffffu >> (8u * (words * 4u - params.keys));
  let end = loop_end(words, row.z);
  var found = vec4<u32>(0u);
  for (var first = thread; first < end; first += 4u * team) {
    let at = min(first + team * vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(words - 1u));
    let bytes = vec4<u32>(mask[start + at.x], mask[start + at.y], mask[start + at.z], mask[start + at.w]);
    let inside = select(vec4<u32>(0xffffffffu), vec4<u32>(lanes), at == vec4<u32>(words - 1u));
    found = max(found, select(vec4<u32>(0u), at + 1u, (bytes & inside) != vec4<u32>(0u)));
  }
  return max(max(found.x, found.y), max(found.z, found.w));
}

// The number of words of keys that a row needs. `last` is the index after its last word with an unmasked element. All
// are needed if the row has none and its keys then have equal weights.
fn needed_end(last: u32) -> u32 {
  return select(last, (params.keys + 3u) / 4u, last == 0u && params.masked_score == LEAST);
}

// Steps plus the bias. A bias broadcasts along dimensions that are 1, and repeats along the first. A word holds two
// numbers.
fn biased(steps: vec4<i32>, p: vec4<u32>) -> vec4<i32> {
  if (BIASED == 0u) { return steps; }
  let at = vec3<u32>(p.x % params.bias_dims.x, min(p.yz, params.bias_dims.yz - 1u));
  let line = (at.x * params.bias_dims.y + at.y) * params.bias_dims.z + at.z;
  let word = line * params.bias_words + min(p.w / 2u, params.bias_words - 2u);
  let words = vec2<i32>(bias[word], bias[word + 1u]);
  let more = vec4<i32>(words.x << 16u, words.x, words.y << 16u, words.y) >> vec4<u32>(16u);
  return select(steps + more, vec4<i32>(EXCLUDED), more == vec4<i32>(-32768));
}

// 2^39 / sum, truncated to an integer and rounded to a float. Two divisions compute its up to 31 bits. Every row has a
// weight of 255, except for a row whose elements are all masked: its sums are 0.
fn inverse_of(sum: u32) -> f32 {
  let total = max(sum, 255u);
  let high = 0x80000000u / total;
  let low = ((0x80000000u - high * total) << 8u) / total;
  return f32(high) * 256.0 + f32(low);
}

// kernels/epilogue/magic_rounding.py explains rounding by additions.
fn context_word(sum: vec4<i32>, inverse: f32) -> u32 {
  let by = params.multiplier * inverse;
  let t = clamp(vec4<f32>(sum) * by, vec4<f32>(params.low), vec4<f32>(params.high)) + vec4<f32>(params.magic);
  let steps = bitcast<vec4<f32>>(bitcast<vec4<i32>>(t) + vec4<i32>(params.offset));
  return packed_whole(whole_quad(steps), params.zero);
}

// --- the same for weights of 14 bits ---

// 2^47 / sum. It has up to 34 bits; a loop computes the last 16, four at a time.
fn fine_inverse_of(sum: u32) -> f32 {
  let total = max(sum, 16383u);
  let high = 0x80000000u / total;
  var left = 0x80000000u - high * total;
  var low = 0u;
  for (var i = 0u; i < 4u; i++) {
    left <<= 4u;
    let digit = left / total;
    left -= digit * total;
    low = (low << 4u) | digit;
  }
  return f32(high) * 65536.0 + f32(low);
}

fn fine_term(sum: vec4<i32>, by: f32) -> vec4<i32> {
  return vec4<i32>(round(clamp(vec4<f32>(sum) * by, vec4<f32>(-TERM_LIMIT), vec4<f32>(TERM_LIMIT))));
}

fn fine_word(high: vec4<i32>, low: vec4<i32>, inverse: f32) -> Word {
  let by = params.multiplier * inverse;
  let v = fine_term(high, by * 128.0) + fine_term(low, by);
  return packed(int8_quad(v, params.fraction, params.zero, params.lo, params.hi));
}

// From the sums of a row of scores and of weighted values, in one part (coarse) or in a high and a low one (fine).
fn coarse_inverse(all: i32, low: i32) -> f32 { return inverse_of(u32(all)); }
fn fine_inverse(high: i32, low: i32) -> f32 { return fine_inverse_of(u32(high) * 128u + u32(low)); }
fn coarse_context(sum: vec4<i32>, low: vec4<i32>, inverse: f32) -> Word { return context_word(sum, inverse); }
fn fine_context(high: vec4<i32>, low: vec4<i32>, inverse: f32) -> Word { return fine_word(high, low, inverse); }
