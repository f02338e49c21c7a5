// Attention by packed dot products. A thread computes four rows of four columns of the scores, and GROUPS such tiles of
// the context. Values are transposed while they are loaded, so that both products sum along words. The four columns of
// a thread are stored far apart, so that neighbouring threads read neighbouring rows.

const DEPTH_ROW = DEPTH + 4u;
const KEYS_ROW = KEYS / 4u + 4u;
const QUERY_LOADS = (ROWS * DEPTH / 4u + THREADS - 1u) / THREADS;
const KEY_LOADS = (KEYS * DEPTH / 4u + THREADS - 1u) / THREADS;
const VALUE_LOADS = (KEYS * WIDTH / 16u + THREADS - 1u) / THREADS;
const COLUMNS = (WIDTH + THREADS - 1u) / THREADS;

const ACROSS = KEYS / 4u;
const GROUPS = (WIDTH / 4u + ACROSS - 1u) / ACROSS;
const LOWS = 1u + FINE * (4u * GROUPS - 1u);

var<workgroup> queries: array<u32, ROWS * DEPTH_ROW>;
// Keys, then values.
var<workgroup> others: array<u32, max(KEYS * DEPTH_ROW, WIDTH * KEYS_ROW)>;
var<workgroup> other_sums: array<i32, max(KEYS, WIDTH)>;

fn query_four(at: u32) -> vec4<u32> { return vec4<u32>(queries[at], queries[at + 1u], queries[at + 2u], queries[at + 3u]); }
fn other_four(at: u32) -> vec4<u32> { return vec4<u32>(others[at], others[at + 1u], others[at + 2u], others[at + 3u]); }
fn weight_four(at: u32) -> vec4<u32> { return vec4<u32>(weights[at], weights[at + 1u], weights[at + 2u], weights[at + 3u]); }

fn stage_queries(block: Block, local: u32) {
  for (var i = 0u; i < QUERY_LOADS; i++) {
    let item = local + i * THREADS;
    if (item < ROWS * DEPTH / 4u) {
      let found = load_query(block, item);
      let at = item / (DEPTH / 4u) * DEPTH_ROW + item % (DEPTH / 4u) * 4u;
      queries[at] = found.x;
      queries[at + 1u] = found.y;
      queries[at + 2u] = found.z;
      queries[at + 3u] = found.w;
    }
  }
}

fn stage_key(item: u32, found: vec4<u32>) {
  if (item < KEYS * DEPTH / 4u) {
    let at = staged_row(item / (DEPTH / 4u), KEYS) * DEPTH_ROW + item % (DEPTH / 4u) * 4u;
    others[at] = found.x;
    others[at + 1u] = found.y;
    others[at + 2u] = found.z;
    others[at + 3u] = found.w;
  }
}

// The index in workgroup memory of the row that holds column n of a product.
fn staged_row(n: u32, count: u32) -> u32 { return n % 4u * (count / 4u) + n / 4u; }

// --- values, transposed while they are loaded: a thread loads a word of each of four rows ---

// Neighbouring threads load words beside and below each other, a compromise between memory and workgroup memory.
fn value_word(item: u32) -> u32 { return item % 4u + item / 32u % (WIDTH / 16u) * 4u; }
fn value_rows(item: u32) -> u32 { return (item / 4u % 8u + item / (2u * WIDTH) * 8u) * 4u; }

fn load_value(block: Block, step: u32, item: u32) -> vec4<u32> {
  let rows = step * KEYS + value_rows(item) + vec4<u32>(0u, 1u, 2u, 3u);
  let at = min(rows, vec4<u32>(params.keys - 1u)) * params.value.w
    + vec4<u32>(block.value + min(value_word(item), params.width / 4u - 1u));
  return select(vec4<u32>(0u), vec4<u32>(v[at.x], v[at.y], v[at.z], v[at.w]), rows < vec4<u32>(params.keys));
}

fn stage_value(item: u32, found: vec4<u32>) {
  if (item < KEYS * WIDTH / 16u) {
    let even = (found.xz & vec2<u32>(0x00ff00ffu)) | ((found.yw & vec2<u32>(0x00ff00ffu)) << vec2<u32>(8u));
    let odd = ((found.xz >> vec2<u32>(8u)) & vec2<u32>(0x00ff00ffu)) | (found.yw & vec2<u32>(0xff00ff00u));
    let column = value_word(item) * 4u;
    let at = value_rows(item) / 4u;
    others[staged_row(column, WIDTH) * KEYS_ROW + at] = (even.x & 0xffffu) | (even.y << 16u);
    others[staged_row(column + 1u, WIDTH) * KEYS_ROW + at] = (odd.x & 0xffffu) | (odd.y << 16u);
    others[staged_row(column + 2u, WIDTH) * KEYS_ROW + at] = (even.x >> 16u) | (even.y & 0xffff0000u);
    others[staged_row(column + 3u, WIDTH) * KEYS_ROW + at] = (odd.x >> 16u) | (odd.y & 0xffff0000u);
  }
}

// --- sums for the zero points. Each thread sums a row from another word on, so that threads use different banks. ---

fn sum_queries(local: u32) {
  if (local < ROWS) {
    var sum = 0;
    for (var i = 0u; i < DEPTH; i++) { sum += dot4(queries[local * DEPTH_ROW + (i + local) % DEPTH], BYTES); }
    query_terms[local] = -params.key_zero * (sum - i32(params.depth) * params.query_zero);
  }
}

fn sum_keys(local: u32) {
  for (var row = local; row < KEYS; row += THREADS) {
    var sum = 0;
    for (var i = 0u; i < DEPTH; i++) { sum += dot4(others[row * DEPTH_ROW + (i + row) % DEPTH], BYTES); }
    other_sums[row] = sum;
  }
}

fn sum_of_values(column: u32) -> i32 {
  var sum = 0;
  for (var i = 0u; i < KEYS / 4u; i++) {
    sum += dot4(others[min(column, WIDTH - 1u) * KEYS_ROW + (i + column) % (KEYS / 4u)], BYTES);
  }
  return sum;
}

fn sums_of_others(first: u32, count: u32) -> vec4<i32> {
  return vec4<i32>(other_sums[staged_row(first, count)], other_sums[staged_row(first + 1u, count)],
                   other_sums[staged_row(first + 2u, count)], other_sums[staged_row(first + 3u, count)]);
}

@compute @workgroup_size(THREADS)
fn main(@builtin(local_invocation_index) local: u32,
        @builtin(workgroup_id) group: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>) {
  let index = group.y * groups.x + group.x;
  if (index >= params.matrices * blocks()) { return; }
  let block = block_of(index);
  let row = local / ACROSS * 4u;
  let across = local % ACROSS;
  var next_key: array<vec4<u32>, KEY_LOADS>;
  for (var i = 0u; i < KEY_LOADS; i++) { next_key[i] = load_key(block, 0u, local + i * THREADS); }
  stage_queries(block, local);
  begin(local);
  let steps = needed_steps(block, local);
  for (var step = 0u; step < steps; step++) {
    for (var i = 0u; i < KEY_LOADS; i++) { stage_key(local + i * THREADS, next_key[i]); }
    workgroupBarrier();
    if (step == 0u) { sum_queries(local); }
    sum_keys(local);
    if (step + 1u < steps) {
      for (var i = 0u; i < KEY_LOADS; i++) { next_key[i] = load_key(block, step + 1u, local + i * THREADS); }
    }
    var acc = array<vec4<i32>, 4>();
    for (var s = 0u; s < DEPTH; s += 4u) {
      let b0 = other_four(across * DEPTH_ROW + s);
      let b1 = other_four((across + ACROSS) * DEPTH_ROW + s);
      let b2 = other_four((across + 2u * ACROSS) * DEPTH_ROW + s);
      let b3 = other_four((across + 3u * ACROSS) * DEPTH_ROW + s);
      for (var i = 0u; i < 4u; i++) {
        acc[i] = dot_quad(acc[i], query_four((row + i) * DEPTH_ROW + s), b0, b1, b2, b3);
      }
    }
    workgroupBarrier();
    for (var i = 0u; i < 4u; i++) {
      let sum = acc[i] - params.query_zero * sums_of_others(across * 4u, KEYS);
      acc[i] = block_scores(block, row + i, step, across * 4u, sum);
      update_largest(row + i, step, acc[i]);
    }
    workgroupBarrier();
    for (var i = 0u; i < 4u; i++) { store_distances(row + i, step, across * 4u, acc[i]); }
  }

  var next_value: array<vec4<u32>, VALUE_LOADS>;
  for (var i = 0u; i < VALUE_LOADS; i++) { next_value[i] = load_value(block, 0u, local + i * THREADS); }
  workgroupBarrier();
  softmax_weights(local, steps);

  var context: array<vec4<i32>, 4u * GROUPS>;
  var lows: array<vec4<i32>, LOWS>;
  var sums: array<i32, COLUMNS>;
  for (var step = 0u; step < steps; step++) {
    for (var i = 0u; i < VALUE_LOADS; i++) { stage_value(local + i * THREADS, next_value[i]); }
    workgroupBarrier();
    if (step + 1u < steps) {
      for (var i = 0u; i < VALUE_LOADS; i++) { next_value[i] = load_value(block, step + 1u, local + i * THREADS); }
    }
    for (var i = 0u; i < COLUMNS; i++) { sums[i] += sum_of_values(local + i * THREADS); }
    for (var g = 0u; g < GROUPS; g++) {
      let column = min(across + g * ACROSS, WIDTH / 4u - 1u);
      for (var s = 0u; s < KEYS / 4u; s += 4u) {
        let b0 = other_four(column * KEYS_ROW + s);
        let b1 = other_four((column + WIDTH / 4u) * KEYS_ROW + s);
        let b2 = other_four((column + WIDTH / 2u) * KEYS_ROW + s);
        let b3 = other_four((column + WIDTH / 4u * 3u) * KEYS_ROW + s);
        for (var i = 0u; i < 4u; i++) {
          let at = (row + i) * LENGTH_ROW + step * (KEYS / 4u) + s;
          context[g * 4u + i] = dot_quad(context[g * 4u + i], weight_four(at), b0, b1, b2, b3);
          if (FINE == 1u) {
            let low = (g * 4u + i) % LOWS;
            lows[low] = dot_quad(lows[low], low_four(at), b0, b1, b2, b3);
          }
        }
      }
    }
    workgroupBarrier();
  }
  for (var i = 0u; i < COLUMNS; i++) { if (local + i * THREADS < WIDTH) { other_sums[local + i * THREADS] = sums[i]; } }
  workgroupBarrier();
  for (var g = 0u; g < GROUPS; g++) {
    let column = (across + g * ACROSS) * 4u;
    if (column < WIDTH) {
      let values = 127 * sums_of_others(column, WIDTH);
      for (var i = 0u; i < 4u; i++) {
        store_sums(block, row + i, column, values, context[g * 4u + i], lows[(g * 4u + i) % LOWS]);
      }
    }
  }
}
