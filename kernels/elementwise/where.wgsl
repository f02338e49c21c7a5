// Elements of one of two operands, chosen by a third; a dimension of extent 1 is read at 0.
fn chosen(p: vec4<u32>) -> Element {
  let holds = (bitcast<u32>(condition_at(min(p, params.condition_dims - 1u))) & 0x7fffffffu) != 0u;
  return select(b_at(min(p, params.b_dims - 1u)), a_at(min(p, params.a_dims - 1u)), holds);
}

// In steps of the result: a table for each of the two.
fn q8ta_chosen(p: vec4<u32>) -> i32 {
  let holds = condition_at(min(p, params.condition_dims - 1u)) != params.condition_zero;
  let a = a_at(min(p, params.a_dims - 1u)) + 128;
  let b = b_at(min(p, params.b_dims - 1u)) + 384;
  let at = u32(select(b, a, holds));
  return lane(table[at / 4u], at % 4u);
}

// Where one of them or the result is int16; of a number the multiplier is 0.
fn q16ta_chosen(p: vec4<u32>) -> i32 {
  let holds = condition_at(min(p, params.condition_dims - 1u)) != params.condition_zero;
  let a = f32(a_at(min(p, params.a_dims - 1u)) - params.a_zero) * params.a_multiplier;
  let b = f32(b_at(min(p, params.b_dims - 1u)) - params.b_zero) * params.b_multiplier;
  let steps = round_within(select(b, a, holds), STEPS_LIMIT) + select(params.b_steps, params.a_steps, holds);
  return clamp(steps + params.zero, params.lo, params.hi);
}
