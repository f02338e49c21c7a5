// The numbers of an attention: from sums to scores, from the sum of weights to its inverse, from sums to int8.

// Less than any score by more than all distances, and a score that takes no part. What a mask leaves out has one of them,
// params.left_out: a row of LEAST alone has equal weights.
const LEAST = -0x20000000i;
const NO_PART = -0x40000000i;
const BYTES = 0x01010101u;

// The word at which a head's matrix begins.
fn first_word(walk: vec4<u32>, batch: u32, head: u32) -> u32 { return walk.x + batch * walk.y + head * walk.z; }

fn packed_bytes(v: vec4<u32>) -> u32 { return v.x | (v.y << 8u) | (v.z << 16u) | (v.w << 24u); }

// Scores of four keys in steps, from sums of (query - zero)(key - zero); p is the first one's batch, head, query and key.
// Clamped first, a product plus 1.5 * 2^23 is rounded half to even (kernels/epilogue/near.py), and compilers cannot join them.
fn scores_of(sum: vec4<i32>, p: vec4<u32>) -> vec4<i32> {
  let scaled = clamp(vec4<f32>(sum) * params.score_multiplier, vec4<f32>(-4194304.0), vec4<f32>(4194304.0));
  let steps = bitcast<vec4<i32>>(scaled + vec4<f32>(12582912.0)) - vec4<i32>(0x4b400000);
  let inside = p.w + vec4<u32>(0u, 1u, 2u, 3u) < vec4<u32>(params.keys);
  let chosen = unpack4xU8(part_of(p)) > vec4<u32>(0u);
  return select(vec4<i32>(NO_PART), select(vec4<i32>(params.left_out), biased(steps, p), chosen), inside);
}

// Of one thread among `team` that share a row: the word behind the last one of which a mask leaves something, or 0. Four
// loads are under way at a time.
fn last_part(row: vec3<u32>, thread: u32, team: u32) -> u32 {
  let words = (params.keys + 3u) / 4u;
  if (params.mask_dims.w == 1u) { return words; }
  let start = mask_index(mask_place(vec4<u32>(row, 0u)));
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

// The words of keys that matter to a row, from the end of what its mask leaves: all where nothing is left and each key has
// the same weight then.
fn end_of(last: u32) -> u32 {
  return select(last, (params.keys + 3u) / 4u, last == 0u && params.left_out == LEAST);
}

// Dimensions of a bias that are 1 are read at 0, and it repeats along the first. Two numbers lie in a word.
fn biased(steps: vec4<i32>, p: vec4<u32>) -> vec4<i32> {
  if (BIASED == 0u) { return steps; }
  let at = vec3<u32>(p.x % params.bias_dims.x, min(p.yz, params.bias_dims.yz - 1u));
  let line = (at.x * params.bias_dims.y + at.y) * params.bias_dims.z + at.z;
  let word = line * params.bias_words + min(p.w / 2u, params.bias_words - 2u);
  let words = vec2<i32>(bias[word], bias[word + 1u]);
  let more = vec4<i32>(words.x << 16u, words.x, words.y << 16u, words.y) >> vec4<u32>(16u);
  return select(steps + more, vec4<i32>(NO_PART), more == vec4<i32>(-32768));
}

// 2^39 / sum, cut to a whole number and rounded to a float: in two divisions, since it has up to 31 bits. Every row has a
// weight of 255, but for one without any part, whose sums are 0.
fn inverse_of(sum: u32) -> f32 {
  let whole = max(sum, 255u);
  let high = 0x80000000u / whole;
  let low = ((0x80000000u - high * whole) << 8u) / whole;
  return f32(high) * 256.0 + f32(low);
}

// kernels/epilogue/near.py says how it rounds by additions.
fn context_word(sum: vec4<i32>, inverse: f32) -> u32 {
  let by = params.multiplier * inverse;
  let t = clamp(vec4<f32>(sum) * by, vec4<f32>(params.low), vec4<f32>(params.high)) + vec4<f32>(params.magic);
  let steps = bitcast<vec4<f32>>(bitcast<vec4<i32>>(t) + vec4<i32>(params.offset));
  return packed_whole(whole_quad(steps), params.zero);
}

// --- the same for weights of 14 bits, as two of 7: 2^47 / sum has up to 34 bits, of which the last 16 are found by four ---

fn fine_inverse_of(sum: u32) -> f32 {
  let whole = max(sum, 16383u);
  let high = 0x80000000u / whole;
  var left = 0x80000000u - high * whole;
  var low = 0u;
  for (var i = 0u; i < 4u; i++) {
    left <<= 4u;
    let digit = left / whole;
    left -= digit * whole;
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
