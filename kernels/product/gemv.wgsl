// The product of few rows of x with int8 weights. A team, TEAM of a workgroup's THREADS, makes one channel quad of up
// to ROWS rows; its threads share k. Weights are in order (channel quad, k, channel in quad), so that a thread reads 64
// contiguous bytes. Weights of 4 bits are read in pairs of vectors, which share a factor; k counts pairs then.
// Open:
//   ROWS, TEAM, THREADS, HALVES: the kernel
//   start_half(quad: u32, half: u32) -> vec4<i32>, acc_of(high: vec4<i32>, low: vec4<i32>) -> Acc: halves_int8, halves_int16
//   turn_of(quad: u32, k: u32) -> Turn, add_turn(acc: vec4<i32>, first: u32, k: u32, half: u32, turn: Turn) -> vec4<i32>:
//     gemv_weights_8, gemv_weights_4
// Uses quad.

// Sums of a row: one for int8, two for the halves of int16.
const SUMS = ROWS * HALVES;

var<workgroup> partial: array<vec4<i32>, THREADS * SUMS>;

@compute @workgroup_size(THREADS)
fn main(@builtin(local_invocation_index) t: u32,
        @builtin(workgroup_id) group: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>) {
  let own = (group.y * groups.x + group.x) * (THREADS / TEAM) + t / TEAM;
  let quad = min(own, params.quads - 1u);
  let lane = t % TEAM;
  // Loaded first, so that these loads overlap those of the weights.
  let channel = channel_quad(quad);
  let start = start_half(quad, 0u);
  let last_start = start_half(quad, HALVES - 1u);
  var acc: array<vec4<i32>, SUMS>;
  for (var k = lane; k < params.vectors; k += TEAM) {
    let turn = turn_of(quad, k);
    for (var i = 0u; i < SUMS; i++) {
      acc[i] = add_turn(acc[i], min(i / HALVES, params.rows - 1u) * params.row_words, k, i % HALVES, turn);
    }
  }
  for (var i = 0u; i < SUMS; i++) { partial[i * THREADS + t] = acc[i]; }
  for (var half = TEAM / 2u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (lane < half) {
      for (var i = 0u; i < SUMS; i++) { partial[i * THREADS + t] += partial[i * THREADS + t + half]; }
    }
  }
  workgroupBarrier();
  if (lane < params.rows && own < params.quads) {
    let first = lane * HALVES * THREADS + t - lane;
    let acc = acc_of(partial[first] + start, partial[first + (HALVES - 1u) * THREADS] + last_start);
    store_quad(acc, channel, lane, quad);
  }
}

struct Vectors { b0: vec4<u32>, b1: vec4<u32>, b2: vec4<u32>, b3: vec4<u32> }

fn vectors_at(at: u32) -> Vectors { return Vectors(weight[at], weight[at + 1u], weight[at + 2u], weight[at + 3u]); }
