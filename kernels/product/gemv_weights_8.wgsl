// Weights of 8 bits for gemv: a turn is a vector of k of four channels.
alias Turn = Vectors;

fn turn_of(quad: u32, k: u32) -> Turn { return vectors_at((quad * params.vectors + k) * 4u); }

fn add_turn(acc: vec4<i32>, first: u32, k: u32, half: u32, turn: Turn) -> vec4<i32> {
  return dot_quad(acc, half_vector(x_vector(first, k), half), turn.b0, turn.b1, turn.b2, turn.b3);
}
