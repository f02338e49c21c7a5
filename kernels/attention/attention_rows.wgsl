// Attention without workgroup memory, for CPUs and for any number of keys. A thread takes a query and up to 4 COLUMNS
// channels of its context. It computes the scores twice, first to find the largest and then for the weights. Fine
// weights (FINE) are two halves of 7 bits.

const LOWS = 1u + FINE * (COLUMNS - 1u);


// Scores with four keys. p is the batch, head, query and key of the first. Keys after the last one are excluded.
fn four_scores(query: ptr<function, array<u32, DEPTH>>, own: i32, base: u32, p: vec4<u32>) -> vec4<i32> {
  let at = min(p.w + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(params.keys - 1u)) * params.key.w + vec4<u32>(base);
  var sum = vec4<i32>(own);
  for (var i = 0u; i < DEPTH; i++) {
    let a = (*query)[i];
    let b = vec4<u32>(k[at.x + i], k[at.y + i], k[at.z + i], k[at.w + i]);
    sum += vec4<i32>(dot4(a, b.x), dot4(a, b.y), dot4(a, b.z), dot4(a, b.w));
    if (QUERY_ZERO == 1u) {
      sum -= params.query_zero * vec4<i32>(dot4(BYTES, b.x), dot4(BYTES, b.y), dot4(BYTES, b.z), dot4(BYTES, b.w));
    }
  }
  return scores_of(sum, p);
}

// The number of keys that a row needs, a multiple of four.
fn all_keys(row: vec3<u32>) -> u32 { return loop_end(params.keys, row.z); }
fn masked_keys(row: vec3<u32>) -> u32 { return needed_end(unmasked_end(row, 0u, 1u)) * 4u; }

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) local: u32,
        @builtin(workgroup_id) group: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>) {
  let index = (group.y * groups.x + group.x) * 64u + local;
  if (index >= params.matrices * params.slices * params.queries) { return; }
  let row = index % params.queries;
  let first = index / params.queries % params.slices * COLUMNS;
  let matrix = index / (params.queries * params.slices);
  let b = matrix / params.heads;
  let h = matrix % params.heads;

  var query: array<u32, DEPTH>;
  var own = -i32(params.depth) * params.query_zero;
  let start = first_word(params.query, b, h) + row * params.query.w;
  for (var i = 0u; i < DEPTH; i++) {
    query[i] = q[start + i];
    own += dot4(q[start + i], BYTES);
  }
  own = -params.key_zero * own;

  let keys = first_word(params.key, b, h / params.group);
  let needed = needed_keys(vec3<u32>(b, h, row));
  var found = vec4<i32>(LEAST);
  for (var key = 0u; key < needed; key += 4u) {
    found = max(found, four_scores(&query, own, keys, vec4<u32>(b, h, row, key)));
  }
  let most = max(max(found.x, found.y), max(found.z, found.w));

  let values = first_word(params.value, b, h / params.group) + first;
  var all = 0;
  var all_low = 0;
  var context: array<vec4<i32>, COLUMNS>;
  var lows: array<vec4<i32>, LOWS>;
  for (var key = 0u; key < needed; key += 4u) {
    let apart = vec4<i32>(most) - four_scores(&query, own, keys, vec4<u32>(b, h, row, key));
    let d = min(apart, vec4<i32>(i32(DISTANCES) - 1));
    let whole = vec4<i32>(powers[d.x], powers[d.y], powers[d.z], powers[d.w]);
    let weight = whole >> vec4<u32>(7u * FINE);
    let low = whole & vec4<i32>(127);
    all += weight.x + weight.y + weight.z + weight.w;
    all_low += low.x + low.y + low.z + low.w;
    let at = min(key + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(params.keys - 1u)) * params.value.w + vec4<u32>(values);
    for (var i = 0u; i < COLUMNS; i++) {
      let n = min(i, params.width / 4u - 1u - first);
      let first_value = unpack4xI8(v[at.x + n]);
      let second = unpack4xI8(v[at.y + n]);
      let third = unpack4xI8(v[at.z + n]);
      let fourth = unpack4xI8(v[at.w + n]);
      context[i] += weight.x * first_value + weight.y * second + weight.z * third + weight.w * fourth;
      if (FINE == 1u) { lows[i % LOWS] += low.x * first_value + low.y * second + low.z * third + low.w * fourth; }
    }
  }

  let inverse = inverse_of_row(all, all_low);
  let first_result = first_word(params.result, b, h) + row * params.result.w + first;
  for (var i = 0u; i < COLUMNS; i++) {
    if (first + i < params.width / 4u) {
      let low = lows[i % LOWS] - params.value_zero * all_low;
      y[first_result + i] = context_of_row(context[i] - params.value_zero * all, low, inverse);
    }
  }
}
