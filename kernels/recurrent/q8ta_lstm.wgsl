// Gates in torch's order: input, forget, cell, output.
fn first_state(row: u32, unit: u32) -> i32 {
  let first = cell_at(vec4<u32>(0u, 0u, first_of(row, params.cell_dims.z), unit));
  return fixed(first, params.state_steps, f32(STATE_LIMIT));
}

fn cell_step(at: vec4<u32>, hidden: i32, state: i32) -> Next {
  let sums = products(at.w);
  let fresh = rte(sigmoid_fixed(input_of(at, 0u) + sums[0]) * tanh_fixed(input_of(at, 2u) + sums[2]), 14u + params.state_shift);
  let remembered = gated(sigmoid_fixed(input_of(at, 1u) + sums[1]), state);
  let both = clamp(remembered + fresh, -STATE_LIMIT, STATE_LIMIT);
  let most = 524288i >> params.state_shift;
  let reached = tanh_fixed(clamp(both, -most, most) << params.state_shift);
  return Next(rte(sigmoid_fixed(input_of(at, 3u) + sums[3]) * reached, 14u), both);
}
