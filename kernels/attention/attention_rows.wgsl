// Attention without workgroup memory, for any number of keys and for CPUs: a thread takes a query and up to 4 COLUMNS
// channels of its context. It finds the largest score first and computes scores again for the weights.

// Scores with four keys; p is the first one's batch, head, query and key. Those past the last key take no part.
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

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) local: u32,
        @builtin(workgroup_id) group: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>) {
  let index = (group.y * groups.x + group.x) * 64u + local;
  if (index >= params.matrices * params.parts * params.queries) { return; }
  let row = index % params.queries;
  let first = index / params.queries % params.parts * COLUMNS;
  let matrix = index / (params.queries * params.parts);
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

  let keys = first_word(params.key, b, h);
  var found = vec4<i32>(LEAST);
  for (var key = 0u; key < params.keys; key += 4u) {
    found = max(found, four_scores(&query, own, keys, vec4<u32>(b, h, row, key)));
  }
  let most = max(max(found.x, found.y), max(found.z, found.w));

  let values = first_word(params.value, b, h) + first;
  var all = 0;
  var context: array<vec4<i32>, COLUMNS>;
  for (var key = 0u; key < params.keys; key += 4u) {
    let d = min(vec4<i32>(most) - four_scores(&query, own, keys, vec4<u32>(b, h, row, key)), vec4<i32>(255));
    let weight = vec4<i32>(powers[d.x], powers[d.y], powers[d.z], powers[d.w]);
    all += weight.x + weight.y + weight.z + weight.w;
    let at = min(key + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(params.keys - 1u)) * params.value.w + vec4<u32>(values);
    for (var i = 0u; i < COLUMNS; i++) {
      let n = min(i, params.width / 4u - 1u - first);
      context[i] += weight.x * unpack4xI8(v[at.x + n]) + weight.y * unpack4xI8(v[at.y + n])
        + weight.z * unpack4xI8(v[at.z + n]) + weight.w * unpack4xI8(v[at.w + n]);
    }
  }

  let inverse = inverse_of(u32(all));
  let place = first_word(params.result, b, h) + row * params.result.w + first;
  for (var i = 0u; i < COLUMNS; i++) {
    if (first + i < params.width / 4u) { y[place + i] = context_word(context[i] - params.value_zero * all, inverse); }
  }
}
