// Attention of int8 by blocks of ROWS queries of a head (kernels/attention/attention.py defines it), what its kernels share.
// The scores of a block with all keys stay in workgroup memory as int8, and become the weights there; keys, and then values,
// come KEYS at a time. Rows in workgroup memory are four words longer than what they hold, so that neither loads nor stores
// hit one memory bank over and over. Linked: the constants in capitals; query_words, key_words.

const LENGTH_ROW = LENGTH / 4u + 4u;
const TEAM = THREADS / ROWS;
const BYTES = 0x01010101u;

// Scores, then weights.
var<workgroup> weights: array<u32, ROWS * LENGTH_ROW>;
// The powers, and the same in steps of a weight.
var<workgroup> sizes: array<u32, 256>;
var<workgroup> real_steps: array<u32, 256>;
// What the zero points of keys and values take from every sum of a row.
var<workgroup> query_terms: array<i32, ROWS>;
var<workgroup> weight_terms: array<i32, ROWS>;
var<workgroup> shared_parts: array<u32, THREADS>;

// A block: its batch and head, its first query, and the words at which matrices begin.
struct Block { batch: u32, head: u32, first: u32, query: u32, key: u32, value: u32 }

fn blocks() -> u32 { return (params.queries + ROWS - 1u) / ROWS; }

fn block_of(index: u32) -> Block {
  let matrix = index / blocks();
  let b = matrix / params.heads;
  let h = matrix % params.heads;
  return Block(b, h, index % blocks() * ROWS,
               params.query.x + b * params.query.y + h * params.query.z,
               params.key.x + b * params.key.y + h * params.key.z,
               params.value.x + b * params.value.y + h * params.value.z);
}

// --- rows of queries and keys: item after item of four words ---

// All bits of four words of a row from word k on that lie before the depth, which is whole words.
fn before_end(k: u32) -> vec4<u32> {
  let inside = k + vec4<u32>(0u, 1u, 2u, 3u) < vec4<u32>(params.depth / 4u);
  return select(vec4<u32>(0u), vec4<u32>(0xffffffffu), inside | vec4<bool>(DEPTH_FULL == 1u));
}

fn query_each(at: u32) -> vec4<u32> { return vec4<u32>(q[at], q[at + 1u], q[at + 2u], q[at + 3u]); }
fn key_each(at: u32) -> vec4<u32> { return vec4<u32>(k[at], k[at + 1u], k[at + 2u], k[at + 3u]); }

// The same where rows are whole vectors.
fn query_whole(at: u32) -> vec4<u32> { return q[at / 4u]; }
fn key_whole(at: u32) -> vec4<u32> { return k[at / 4u]; }

fn load_query(block: Block, item: u32) -> vec4<u32> {
  let word = item % (DEPTH / 4u) * 4u;
  let row = min(block.first + item / (DEPTH / 4u), params.queries - 1u);
  return query_words(block.query + row * params.query.w + word) & before_end(word);
}

// Rows past the last key hold anything.
fn load_key(block: Block, step: u32, item: u32) -> vec4<u32> {
  let word = item % (DEPTH / 4u) * 4u;
  let row = min(step * KEYS + item / (DEPTH / 4u), params.keys - 1u);
  return key_words(block.key + row * params.key.w + word) & before_end(word);
}

// --- from sums to int8: sum (a - az)(b - bz) = sum (a - az) b - bz sum (a - az) ---

// kernels/epilogue/near.py says how it rounds by additions.
struct Rounding { multiplier: f32, low: f32, high: f32, magic: f32, offset: i32, zero: i32 }

fn rounded_near(sum: vec4<i32>, by: Rounding) -> u32 {
  let t = clamp(vec4<f32>(sum) * by.multiplier, vec4<f32>(by.low), vec4<f32>(by.high)) + vec4<f32>(by.magic);
  let steps = bitcast<vec4<f32>>(bitcast<vec4<i32>>(t) + vec4<i32>(by.offset));
  return packed_whole(whole_quad(steps), by.zero);
}

// All bits of the elements of a word of a row that lie before the last key.
fn before_last(word: u32) -> u32 {
  let lanes = min(max(params.keys, word * 4u) - word * 4u, 4u);
  return select(0xffffffffu >> (8u * (4u - max(lanes, 1u))), 0u, lanes == 0u);
}

// A word of scores, of a row and four keys, from sums of (query - zero) key. Behind the last key they are the least there is.
fn keep_scores(row: u32, step: u32, first: u32, sum: vec4<i32>) {
  let by = Rounding(params.score_multiplier, params.score_low, params.score_high, params.score_magic, params.score_offset,
                    params.score_zero);
  var word = rounded_near(sum + query_terms[row], by);
  let place = (step * KEYS + first) / 4u;
  if (step + 1u == params.steps) {
    let ends = before_last(place);
    word = (word & ends) | (0x80808080u & ~ends);
  }
  weights[row * LENGTH_ROW + place] = word;
}

// A word of the result, of a row and four channels of the head, from sums of (weight - zero) value.
fn store_context(block: Block, row: u32, column: u32, sum: vec4<i32>) {
  let query = block.first + row;
  if (query >= params.queries || column >= params.width) { return; }
  let by = Rounding(params.multiplier, params.low, params.high, params.magic, params.offset, params.zero);
  let line = (block.batch * params.queries + query) * params.heads + block.head;
  y[(line * params.width + column) / 4u] = rounded_near(sum + weight_terms[row], by);
}

// --- softmax: kernels/norm/softmax.py defines it ---

fn keep_powers(local: u32) {
  for (var i = local; i < 256u; i += THREADS) {
    sizes[i] = u32(powers[i]);
    real_steps[i] = u32(powers[256u + i]);
  }
}

// Elements counted from 0; what takes no part is 0, the least.
fn above_least(word: u32, taken: u32) -> vec4<u32> { return unpack4xU8((word ^ 0x80808080u) & taken); }

fn team_largest(local: u32, own: u32) -> u32 {
  shared_parts[local] = own;
  workgroupBarrier();
  var found = 0u;
  for (var i = 0u; i < TEAM; i++) { found = max(found, shared_parts[local / TEAM * TEAM + i]); }
  workgroupBarrier();
  return found;
}

fn team_sum(local: u32, own: u32) -> u32 {
  shared_parts[local] = own;
  workgroupBarrier();
  var found = 0u;
  for (var i = 0u; i < TEAM; i++) { found += shared_parts[local / TEAM * TEAM + i]; }
  workgroupBarrier();
  return found;
}

struct Divisor { sum: i32, inverse: f32, rest: i32 }

// A little less than the inverse: quotients, below 2^17, then are right or one too small, however floats are rounded.
fn divisor(sum: u32) -> Divisor {
  return Divisor(bitcast<i32>(sum), (1.0 - 1.0 / 524288.0) / f32(sum), i32(sum - sum / 2u));
}

// (steps + sum / 2) / sum, clamped to a weight: a quotient of floats, rounded by an addition, and what is left of it.
fn weight_at(d: u32, by: Divisor) -> i32 {
  let counted = real_steps[d];
  let quotient = bitcast<i32>(f32(counted) * by.inverse + 12582912.0) - 0x4b400000;
  let more = bitcast<i32>(counted) - quotient * by.sum >= by.rest;
  return quotient + select(0, 1, more);
}

fn clamped_weight(steps: vec4<i32>) -> vec4<i32> {
  return clamp(steps + params.weight_zero, vec4<i32>(params.weight_lo), vec4<i32>(params.weight_hi));
}

// Scores become weights. The lanes behind the last key of the last word have one, too, which meets values of 0.
fn soften(local: u32, block: Block) {
  let row = local / TEAM;
  let lane = local % TEAM;
  let base = row * LENGTH_ROW;
  let query = min(block.first + row, params.queries - 1u);
  let words = quads(params.keys);
  let behind = words * 4u - params.keys;

  var most = vec4<u32>(0u);
  for (var w = lane; w < words; w += TEAM) {
    let taken = part_of(vec4<u32>(block.batch, block.head, query, w * 4u));
    most = max(most, above_least(weights[base + w], taken));
  }
  let largest = team_largest(local, max(max(most.x, most.y), max(most.z, most.w)));

  var added = vec4<u32>(0u);
  for (var w = lane; w < words; w += TEAM) {
    let taken = part_of(vec4<u32>(block.batch, block.head, query, w * 4u));
    let d = largest - above_least(weights[base + w], taken);
    let size = vec4<u32>(sizes[d.x], sizes[d.y], sizes[d.z], sizes[d.w]);
    added += select(size, size * unpack4xU8(taken & BYTES), MASKED == 1u);
  }
  let all = team_sum(local, added.x + added.y + added.z + added.w);
  let by = divisor(max(all - select(behind * sizes[largest], 0u, MASKED == 1u), 1u));

  var whole = 0;
  for (var w = lane; w < words; w += TEAM) {
    let taken = part_of(vec4<u32>(block.batch, block.head, query, w * 4u));
    let d = largest - above_least(weights[base + w], taken);
    let steps = vec4<i32>(weight_at(d.x, by), weight_at(d.y, by), weight_at(d.z, by), weight_at(d.w, by));
    let made = pack4xI8(clamped_weight(select(steps, steps * vec4<i32>(unpack4xU8(taken & BYTES)), MASKED == 1u)));
    weights[base + w] = made;
    whole += dot4(made, BYTES);
  }
  let total = bitcast<i32>(team_sum(local, bitcast<u32>(whole)));
  if (lane == 0u) {
    let last = clamped_weight(vec4<i32>(select(weight_at(largest, by), 0, MASKED == 1u))).x;
    let counted = total - i32(behind) * last - i32(params.keys) * params.weight_zero;
    weight_terms[row] = -params.value_zero * counted;
  }
}
