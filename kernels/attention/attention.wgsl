// Attention of int8 by blocks of ROWS queries of a head: what its kernels share (kernels/attention/attention.py has the
// definition). The scores of a block with all keys stay in workgroup memory, each as its distance from the largest of
// its row among KEYS keys. The distance is 255 where there is no weight, which is known before the largest of all keys
// is. Distances become the weights in place. Keys, and then values, are loaded KEYS at a time. Rows in workgroup memory
// are four words longer than their contents, so that loads and stores use all memory banks. Linked: the constants in
// capitals, STEPS; query_words, key_words, taken_steps.

const LENGTH_ROW = LENGTH / 4u + 4u;
const TEAM = THREADS / ROWS;
const TURNS = LENGTH / KEYS;

// Distances, then weights.
var<workgroup> weights: array<u32, ROWS * LENGTH_ROW>;
// The largest score of each row among the keys of each step.
var<workgroup> largest: array<atomic<i32>, ROWS * TURNS>;
// What the zero points of keys and values take from every sum of a row, and the inverse of the sum of its weights.
var<workgroup> query_terms: array<i32, ROWS>;
var<workgroup> weight_terms: array<i32, ROWS>;
var<workgroup> inverses: array<f32, ROWS>;
var<workgroup> shared_parts: array<u32, THREADS>;

fn begin(local: u32) {
  for (var i = local; i < ROWS * TURNS; i += THREADS) { atomicStore(&largest[i], LEAST); }
}

fn weights_at(d: vec4<u32>) -> vec4<u32> {
  return vec4<u32>(vec4<i32>(powers[d.x], powers[d.y], powers[d.z], powers[d.w]));
}

// A block: its batch and head, its first query, and the words at which matrices begin.
struct Block { batch: u32, head: u32, first: u32, query: u32, key: u32, value: u32 }

fn blocks() -> u32 { return (params.queries + ROWS - 1u) / ROWS; }

fn block_of(index: u32) -> Block {
  let matrix = index / blocks();
  let b = matrix / params.heads;
  let h = matrix % params.heads;
  return Block(b, h, index % blocks() * ROWS, first_word(params.query, b, h), first_word(params.key, b, h / params.group),
               first_word(params.value, b, h / params.group));
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

// --- from sums to weights: sum (a - az)(b - bz) = sum (a - az) b - bz sum (a - az) ---

// Scores of a row and four keys of a step, from sums of (query - zero) key.
fn found_scores(block: Block, row: u32, step: u32, first: u32, sum: vec4<i32>) -> vec4<i32> {
  let query = min(block.first + row, params.queries - 1u);
  return scores_of(sum + query_terms[row], vec4<u32>(block.batch, block.head, query, step * KEYS + first));
}

fn note_largest(row: u32, step: u32, found: vec4<i32>) {
  atomicMax(&largest[row * TURNS + step], max(max(found.x, found.y), max(found.z, found.w)));
}

// Once the largest is known.
fn keep_scores(row: u32, step: u32, first: u32, found: vec4<i32>) {
  let d = min(vec4<i32>(atomicLoad(&largest[row * TURNS + step])) - found, vec4<i32>(255));
  weights[row * LENGTH_ROW + (step * KEYS + first) / 4u] = packed_bytes(vec4<u32>(d));
}

fn team_sum(local: u32, own: u32) -> u32 {
  shared_parts[local] = own;
  workgroupBarrier();
  var found = 0u;
  for (var i = 0u; i < TEAM; i++) { found += shared_parts[local / TEAM * TEAM + i]; }
  return found;
}

// Distances become 127 less the weight, which is an int8: sums of those and of values are 127 times that of the values too
// large, and negative.
fn soften(local: u32, steps: u32) {
  let row = local / TEAM;
  var most = LEAST;
  for (var i = 0u; i < steps; i++) { most = max(most, atomicLoad(&largest[row * TURNS + i])); }
  var added = vec4<u32>(0u);
  for (var w = local % TEAM; w < steps * (KEYS / 4u); w += TEAM) {
    let more = u32(min(most - atomicLoad(&largest[row * TURNS + w / (KEYS / 4u)]), 255));
    let d = min(unpack4xU8(weights[row * LENGTH_ROW + w]) + more, vec4<u32>(255u));
    let size = weights_at(d);
    added += size;
    weights[row * LENGTH_ROW + w] = packed_bytes(size) ^ 0x7f7f7f7fu;
  }
  let all = team_sum(local, added.x + added.y + added.z + added.w);
  if (local % TEAM == 0u) {
    weight_terms[row] = -params.value_zero * i32(all);
    inverses[row] = inverse_of(all);
  }
}

// A word of the result, of a row and four channels of the head, from sums of weight value.
fn store_context(block: Block, row: u32, column: u32, sum: vec4<i32>) {
  let query = block.first + row;
  if (query >= params.queries || column >= params.width) { return; }
  let at = first_word(params.result, block.batch, block.head) + query * params.result.w + column / 4u;
  y[at] = context_word(sum + weight_terms[row], inverses[row]);
}

// What dot products sum for a word of the result, of weights taken from 127, and the values times 127.
fn store_sums(block: Block, row: u32, column: u32, values: vec4<i32>, sum: vec4<i32>, low: vec4<i32>) {
  store_context(block, row, column, values - sum);
}

// --- the same for weights of 14 bits, as two of 7 that are int8 ---

// The higher bytes of distances and the higher halves of weights are in `weights`, the lower ones here.
var<workgroup> low_weights: array<u32, ROWS * LENGTH_ROW>;
var<workgroup> low_terms: array<i32, ROWS>;

fn no_weight_four(at: u32) -> vec4<u32> { return vec4<u32>(0u); }

fn low_weight_four(at: u32) -> vec4<u32> {
  return vec4<u32>(low_weights[at], low_weights[at + 1u], low_weights[at + 2u], low_weights[at + 3u]);
}

fn keep_fine_scores(row: u32, step: u32, first: u32, found: vec4<i32>) {
  let d = vec4<u32>(min(vec4<i32>(atomicLoad(&largest[row * TURNS + step])) - found, vec4<i32>(i32(DISTANCES) - 1)));
  let at = row * LENGTH_ROW + (step * KEYS + first) / 4u;
  weights[at] = packed_bytes(d >> vec4<u32>(8u));
  low_weights[at] = packed_bytes(d & vec4<u32>(255u));
}

fn soften_fine(local: u32, steps: u32) {
  let row = local / TEAM;
  var most = LEAST;
  for (var i = 0u; i < steps; i++) { most = max(most, atomicLoad(&largest[row * TURNS + i])); }
  var high = vec4<u32>(0u);
  var low = vec4<u32>(0u);
  for (var w = local % TEAM; w < steps * (KEYS / 4u); w += TEAM) {
    let more = u32(min(most - atomicLoad(&largest[row * TURNS + w / (KEYS / 4u)]), i32(DISTANCES) - 1));
    let at = row * LENGTH_ROW + w;
    let found = (unpack4xU8(weights[at]) << vec4<u32>(8u)) + unpack4xU8(low_weights[at]) + more;
    let d = min(found, vec4<u32>(DISTANCES - 1u));
    let size = weights_at(d);
    high += size >> vec4<u32>(7u);
    low += size & vec4<u32>(127u);
    weights[at] = packed_bytes(size >> vec4<u32>(7u));
    low_weights[at] = packed_bytes(size & vec4<u32>(127u));
  }
  let all_high = team_sum(local, high.x + high.y + high.z + high.w);
  workgroupBarrier();
  let all_low = team_sum(local, low.x + low.y + low.z + low.w);
  if (local % TEAM == 0u) {
    weight_terms[row] = -params.value_zero * i32(all_high);
    low_terms[row] = -params.value_zero * i32(all_low);
    inverses[row] = fine_inverse_of(all_high * 128u + all_low);
  }
}

fn store_fine_sums(block: Block, row: u32, column: u32, values: vec4<i32>, sum: vec4<i32>, low: vec4<i32>) {
  let query = block.first + row;
  if (query >= params.queries || column >= params.width) { return; }
  let at = first_word(params.result, block.batch, block.head) + query * params.result.w + column / 4u;
  y[at] = fine_word(sum + weight_terms[row], low + low_terms[row], inverses[row]);
}
