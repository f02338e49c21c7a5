// The product of few rows of x with int8 weights. A team, TEAM of a workgroup's THREADS, makes one channel quad of up
// to ROWS rows; its threads share k. Weights are in order (channel quad, k, channel in quad), so that a thread reads 64
// contiguous bytes. Weights of 4 bits are read in pairs of vectors, which share a factor; k counts pairs then. Linked:
// ROWS, x_vector (gemm_rows), dot_quad, store_quad (quad).
// Uses gemm, gemm_rows, halves, weights.

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

alias Turn = Vectors;

fn turn_of(quad: u32, k: u32) -> Turn { return vectors_at((quad * params.vectors + k) * 4u); }

fn add_turn(acc: vec4<i32>, first: u32, k: u32, half: u32, b: Turn) -> vec4<i32> {
  return dot_quad(acc, half_vector(x_vector(first, k), half), b.b0, b.b1, b.b2, b.b3);
}

struct Turn4 { bits: Vectors, factor: vec4<i32> }

fn turn_of_bits(quad: u32, k: u32) -> Turn4 {
  let bits = vectors_at(params.factors + (quad * params.vectors + k) * 4u);
  return Turn4(bits, weight_factor4(quad, 2u * k));
}

// Weights of 4 bits are multiplied in the high half of a byte, where they have their sign. Products are 16 times as
// large.
fn add_turn_of_bits(acc: vec4<i32>, first: u32, k: u32, half: u32, turn: Turn4) -> vec4<i32> {
  let high = vec4<u32>(0xf0f0f0f0u);
  let four = vec4<u32>(4u);
  let b = turn.bits;
  let v = half_vector(x_vector(first, 2u * k), half);
  let last = half_vector(x_vector(first, 2u * k + 1u), half);
  let even = dot_quad(vec4<i32>(0), v, b.b0 & high, b.b1 & high, b.b2 & high, b.b3 & high);
  let all = dot_quad(even, last, (b.b0 << four) & high, (b.b1 << four) & high,
                     (b.b2 << four) & high, (b.b3 << four) & high);
  return acc + (all >> four) * turn.factor;
}
