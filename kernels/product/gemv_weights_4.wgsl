// Weights of 4 bits for gemv: a turn is two vectors of k of four channels, which share a factor.
// Uses weights_4.

struct Turn { bits: Vectors, factor: vec4<i32> }

fn turn_of(quad: u32, k: u32) -> Turn {
  let bits = vectors_at(params.factors + (quad * params.vectors + k) * 4u);
  return Turn(bits, weight_factor(quad, 2u * k));
}

// Weights of 4 bits are multiplied in the high half of a byte, where they have their sign. Products are 16 times as
// large.
fn add_turn(acc: vec4<i32>, first: u32, k: u32, half: u32, turn: Turn) -> vec4<i32> {
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
