// What the kernels of attention by blocks of ROWS queries of a head share; kernels/attention/attention.py has the
// definition. Workgroup memory holds the scores of a block with all keys.
// Each score is stored as its distance from the largest of its row among KEYS keys. Distances are at most 255, which is
// known to have no weight, so that they can be stored before the largest of all keys is known. Weights later replace
// the distances.
// Keys, and then values, are loaded KEYS at a time. Rows in workgroup memory are four words longer than their contents,
// so that loads and stores use all memory banks. Linked: the constants in capitals, STEPS, query_words, key_words,
// needed_steps.

const LENGTH_ROW = LENGTH / 4u + 4u;
const TEAM = THREADS / ROWS;
const STEPS_OF_KEYS = LENGTH / KEYS;

// Distances, then weights.
var<workgroup> weights: array<u32, ROWS * LENGTH_ROW>;
// The largest score of each row among the keys of each step.
var<workgroup> largest: array<atomic<i32>, ROWS * STEPS_OF_KEYS>;
// The terms of the zero points of keys and of values in every sum of a row, and the inverse of the sum of its weights.
var<workgroup> query_terms: array<i32, ROWS>;
var<workgroup> weight_terms: array<i32, ROWS>;
var<workgroup> inverses: array<f32, ROWS>;
var<workgroup> team_sums: array<u32, THREADS>;

fn begin(local: u32) {
  for (var i = local; i < ROWS * STEPS_OF_KEYS; i += THREADS) { atomicStore(&largest[i], LEAST); }
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

// --- rows of queries and keys, loaded as items of four words ---

// A mask of the bits of four words of a row, from word k on, that lie before its end. The depth is a multiple of a
// word.
fn before_end(k: u32) -> vec4<u32> {
  let inside = k + vec4<u32>(0u, 1u, 2u, 3u) < vec4<u32>(params.depth / 4u);
  return select(vec4<u32>(0u), vec4<u32>(0xffffffffu), inside | vec4<bool>(DEPTH_FULL == 1u));
}

fn query_by_words(at: u32) -> vec4<u32> { return vec4<u32>(q[at], q[at + 1u], q[at + 2u], q[at + 3u]); }
fn key_by_words(at: u32) -> vec4<u32> { return vec4<u32>(k[at], k[at + 1u], k[at + 2u], k[at + 3u]); }

// The same where rows begin at vectors.
fn query_by_vector(at: u32) -> vec4<u32> { return q[at / 4u]; }
fn key_by_vector(at: u32) -> vec4<u32> { return k[at / 4u]; }

fn load_query(block: Block, item: u32) -> vec4<u32> {
  let word = item % (DEPTH / 4u) * 4u;
  let row = min(block.first + item / (DEPTH / 4u), params.queries - 1u);
  return query_words(block.query + row * params.query.w + word) & before_end(word);
}

// Keys after the last one have undefined values.
fn load_key(block: Block, step: u32, item: u32) -> vec4<u32> {
  let word = item % (DEPTH / 4u) * 4u;
  let row = min(step * KEYS + item / (DEPTH / 4u), params.keys - 1u);
  return key_words(block.key + row * params.key.w + word) & before_end(word);
}

// --- from sums to weights: sum (a - az)(b - bz) = sum (a - az) b - bz sum (a - az) ---

// Scores of a row and four keys of a step, from sums of (query - zero) key.
fn block_scores(block: Block, row: u32, step: u32, first: u32, sum: vec4<i32>) -> vec4<i32> {
  let query = min(block.first + row, params.queries - 1u);
  return scores_of(sum + query_terms[row], vec4<u32>(block.batch, block.head, query, step * KEYS + first));
}

fn update_largest(row: u32, step: u32, found: vec4<i32>) {
  atomicMax(&largest[row * STEPS_OF_KEYS + step], max(max(found.x, found.y), max(found.z, found.w)));
}

// Called after update_largest and a barrier.
fn store_distances(row: u32, step: u32, first: u32, found: vec4<i32>) {
  let d = min(vec4<i32>(atomicLoad(&largest[row * STEPS_OF_KEYS + step])) - found, vec4<i32>(255));
  weights[row * LENGTH_ROW + (step * KEYS + first) / 4u] = packed_bytes(vec4<u32>(d));
}

fn team_sum(local: u32, own: u32) -> u32 {
  team_sums[local] = own;
  workgroupBarrier();
  var found = 0u;
  for (var i = 0u; i < TEAM; i++) { found += team_sums[local / TEAM * TEAM + i]; }
  return found;
}

// Replaces distances by weights, stored as the int8 127 - weight. Products with them are therefore 127 times the sum of
// values too large and have the wrong sign.
fn softmax_weights(local: u32, steps: u32) {
  let row = local / TEAM;
  var most = LEAST;
  for (var i = 0u; i < steps; i++) { most = max(most, atomicLoad(&largest[row * STEPS_OF_KEYS + i])); }
  var added = vec4<u32>(0u);
  for (var w = local % TEAM; w < steps * (KEYS / 4u); w += TEAM) {
    let more = u32(min(most - atomicLoad(&largest[row * STEPS_OF_KEYS + w / (KEYS / 4u)]), 255));
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

// Stores a word of the result (four channels of a head) from the sums of weight * value.
fn store_context(block: Block, row: u32, column: u32, sum: vec4<i32>) {
  let query = block.first + row;
  if (query >= params.queries || column >= params.width) { return; }
  let at = first_word(params.result, block.batch, block.head) + query * params.result.w + column / 4u;
  y[at] = context_word(sum + weight_terms[row], inverses[row]);
}

// The same from the sums of (127 - weight) * value in `sum` and of 127 * value in `values`.
fn store_sums(block: Block, row: u32, column: u32, values: vec4<i32>, sum: vec4<i32>, low: vec4<i32>) {
  store_context(block, row, column, values - sum);
}

// --- the same for weights of 14 bits, as two halves of 7 bits that are int8 ---

// `weights` holds the high bytes of distances and then the high halves of weights, these the low ones.
var<workgroup> low_weights: array<u32, ROWS * LENGTH_ROW>;
var<workgroup> low_terms: array<i32, ROWS>;

fn no_weight_four(at: u32) -> vec4<u32> { return vec4<u32>(0u); }

fn low_weight_four(at: u32) -> vec4<u32> {
  return vec4<u32>(low_weights[at], low_weights[at + 1u], low_weights[at + 2u], low_weights[at + 3u]);
}

fn store_fine_distances(row: u32, step: u32, first: u32, found: vec4<i32>) {
  let d = vec4<u32>(min(vec4<i32>(atomicLoad(&largest[row * STEPS_OF_KEYS + step])) - found, vec4<i32>(i32(DISTANCES) - 1)));
  let at = row * LENGTH_ROW + (step * KEYS + first) / 4u;
  weights[at] = packed_bytes(d >> vec4<u32>(8u));
  low_weights[at] = packed_bytes(d & vec4<u32>(255u));
}

fn fine_softmax_weights(local: u32, steps: u32) {
  let row = local / TEAM;
  var most = LEAST;
  for (var i = 0u; i < steps; i++) { most = max(most, atomicLoad(&largest[row * STEPS_OF_KEYS + i])); }
  var high = vec4<u32>(0u);
  var low = vec4<u32>(0u);
  for (var w = local % TEAM; w < steps * (KEYS / 4u); w += TEAM) {
    let more = u32(min(most - atomicLoad(&largest[row * STEPS_OF_KEYS + w / (KEYS / 4u)]), i32(DISTANCES) - 1));
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
