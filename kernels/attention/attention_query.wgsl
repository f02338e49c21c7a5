// Attention of few queries: a workgroup takes one query of a head. Its threads share the keys, four at a time. They
// then share the values: ACROSS neighbouring threads take 16 channels each.
// Registers hold what is read several times. Loads do not depend on each other, since few workgroups hide little of
// their latency. Fine weights (FINE) are two halves of 7 bits. Linked: the constants in capitals, key_words,
// value_words (four words), needed_keys, mask.

const SLICES = THREADS / ACROSS;
const VECTORS = DEPTH / 4u;
const AHEAD = 4u;
const CHANNELS = 16u * ACROSS;

// Scores, then weights.
var<workgroup> weights: array<i32, LENGTH>;
// The index after the last word with an unmasked element.
var<workgroup> end: atomic<u32>;
// The largest score, and the sums of the high and low halves of weights.
var<workgroup> largest: atomic<i32>;
var<workgroup> sums: array<atomic<i32>, 2>;
// The context before zero points and the division: from the high halves of weights, then from the low ones.
var<workgroup> contexts: array<atomic<i32>, CHANNELS * (1u + FINE)>;

fn key_by_words(at: u32) -> vec4<u32> { return vec4<u32>(k[at], k[at + 1u], k[at + 2u], k[at + 3u]); }
fn key_by_vector(at: u32) -> vec4<u32> { return k[at / 4u]; }
fn value_by_words(at: u32) -> vec4<u32> { return vec4<u32>(v[at], v[at + 1u], v[at + 2u], v[at + 3u]); }
fn value_by_vector(at: u32) -> vec4<u32> { return v[at / 4u]; }


// The number of keys that a row needs, a multiple of four.
fn all_keys(row: vec3<u32>, local: u32) -> u32 { return LENGTH; }

fn masked_keys(row: vec3<u32>, local: u32) -> u32 {
  atomicMax(&end, unmasked_end(row, local, THREADS));
  workgroupBarrier();
  return needed_end(atomicLoad(&end)) * 4u;
}

// Four words of a row from word `at` on, those after its end as 0.
fn before_end(words: vec4<u32>, at: u32) -> vec4<u32> {
  let inside = at + vec4<u32>(0u, 1u, 2u, 3u) < vec4<u32>(params.depth / 4u);
  return select(vec4<u32>(0u), words, inside | vec4<bool>(DEPTH_FULL == 1u));
}

fn dots(sum: i32, a: vec4<u32>, b: vec4<u32>) -> i32 {
  return sum + dot4(a.x, b.x) + dot4(a.y, b.y) + dot4(a.z, b.z) + dot4(a.w, b.w);
}

fn begin(local: u32) {
  if (local == 0u) {
    atomicStore(&largest, LEAST);
    atomicStore(&end, 0u);
  }
  if (local < 2u) { atomicStore(&sums[local], 0); }
  for (var i = local; i < CHANNELS * (1u + FINE); i += THREADS) { atomicStore(&contexts[i], 0); }
}

fn four_sums(channel: u32) -> vec4<i32> {
  return vec4<i32>(atomicLoad(&contexts[channel]), atomicLoad(&contexts[channel + 1u]),
                   atomicLoad(&contexts[channel + 2u]), atomicLoad(&contexts[channel + 3u]));
}

@compute @workgroup_size(THREADS)
fn main(@builtin(local_invocation_index) local: u32,
        @builtin(workgroup_id) group: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>) {
  let index = group.y * groups.x + group.x;
  if (index >= params.matrices * params.queries) { return; }
  let row = index % params.queries;
  let b = index / params.queries / params.heads;
  let h = index / params.queries % params.heads;

  var query: array<vec4<u32>, VECTORS>;
  var own = 0;
  let start = first_word(params.query, b, h) + row * params.query.w;
  for (var i = 0u; i < VECTORS; i++) {
    let at = start + i * 4u;
    query[i] = before_end(vec4<u32>(q[at], q[at + 1u], q[at + 2u], q[at + 3u]), i * 4u);
    own = dots(own, query[i], vec4<u32>(BYTES));
  }
  own = -params.key_zero * (own - i32(params.depth) * params.query_zero);

  begin(local);
  workgroupBarrier();
  let needed = needed_keys(vec3<u32>(b, h, row), local);
  let keys = first_word(params.key, b, h / params.group);
  var most = LEAST;
  for (var key = local * 4u; key < needed; key += THREADS * 4u) {
    var sum = vec4<i32>(own);
    for (var i = 0u; i < VECTORS; i++) {
      for (var j = 0u; j < 4u; j++) {
        let at = keys + min(key + j, params.keys - 1u) * params.key.w + i * 4u;
        let words = before_end(key_words(at), i * 4u);
        sum[j] = dots(sum[j], query[i], words);
        if (QUERY_ZERO == 1u) { sum[j] -= params.query_zero * dots(0, words, vec4<u32>(BYTES)); }
      }
    }
    let scores = scores_of(sum, vec4<u32>(b, h, row, key));
    for (var j = 0u; j < 4u; j++) { weights[key + j] = scores[j]; }
    most = max(most, max(max(scores.x, scores.y), max(scores.z, scores.w)));
  }
  atomicMax(&largest, most);
  workgroupBarrier();
  most = atomicLoad(&largest);

  var own_high = 0;
  var own_low = 0;
  for (var key = local; key < needed; key += THREADS) {
    let weight = powers[min(most - weights[key], i32(DISTANCES) - 1)];
    weights[key] = weight;
    own_high += weight >> (7u * FINE);
    own_low += weight & 127;
  }
  atomicAdd(&sums[0], own_high);
  if (FINE == 1u) { atomicAdd(&sums[1], own_low); }
  workgroupBarrier();

  let word = local % ACROSS * 4u;
  let values = first_word(params.value, b, h / params.group) + min(word, (params.width / 4u - 1u) / 4u * 4u);
  var high = array<vec4<i32>, 4>();
  var low = array<vec4<i32>, 4>();
  for (var first = local / ACROSS; first < needed; first += SLICES * AHEAD) {
    var found: array<vec4<u32>, AHEAD>;
    for (var i = 0u; i < AHEAD; i++) {
      found[i] = value_words(values + min(first + i * SLICES, params.keys - 1u) * params.value.w);
    }
    for (var i = 0u; i < AHEAD; i++) {
      let key = first + i * SLICES;
      let weight = select(0, weights[min(key, LENGTH - 1u)], key < needed);
      for (var j = 0u; j < 4u; j++) {
        let value = unpack4xI8(found[i][j]);
        high[j] += (weight >> (7u * FINE)) * value;
        if (FINE == 1u) { low[j] += (weight & 127) * value; }
      }
    }
  }
  for (var j = 0u; j < 4u; j++) {
    for (var i = 0u; i < 4u; i++) {
      let channel = (word + j) * 4u + i;
      atomicAdd(&contexts[channel], high[j][i]);
      if (FINE == 1u) { atomicAdd(&contexts[CHANNELS * FINE + channel], low[j][i]); }
    }
  }
  workgroupBarrier();
  let all = atomicLoad(&sums[0]);
  let all_low = atomicLoad(&sums[1]);
  let inverse = inverse_of_row(all, all_low);
  let first_result = first_word(params.result, b, h) + row * params.result.w;
  for (var w = local; w < params.width / 4u; w += THREADS) {
    let sum = four_sums(w * 4u) - params.value_zero * all;
    let low_sum = four_sums(CHANNELS * FINE + w * 4u) - params.value_zero * all_low;
    y[first_result + w] = context_of_row(sum, low_sum, inverse);
  }
}
