// Elements of one of two operands, selected by a condition. Dimensions of extent 1 are broadcast.
fn selected(p: vec4<u32>) -> Element {
  let holds = (bitcast<u32>(condition_at(min(p, params.condition_dims - 1u))) & 0x7fffffffu) != 0u;
  return select(b_at(min(p, params.b_dims - 1u)), a_at(min(p, params.a_dims - 1u)), holds);
}

// Operands are multiplied to steps of the result. The multiplier of a number is 0.
fn q8ta_selected(p: vec4<u32>) -> i32 {
  let holds = condition_at(min(p, params.condition_dims - 1u)) != params.condition_zero;
  let a = f32(a_at(min(p, params.a_dims - 1u)) - params.a_zero) * params.a_multiplier;
  let b = f32(b_at(min(p, params.b_dims - 1u)) - params.b_zero) * params.b_multiplier;
  let steps = round_within(select(b, a, holds), STEPS_LIMIT) + select(params.b_steps, params.a_steps, holds);
  return clamp(steps + params.zero, params.lo, params.hi);
}
