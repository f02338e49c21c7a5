// Gates in torch's order: reset, update, new.
fn first_state(row: u32, unit: u32) -> i32 { return first_hidden(row, unit); }

fn cell_step(at: vec4<u32>, hidden: i32, state: i32) -> Next {
  let sums = products(at.w);
  let product = clamp(sums[2] >> params.product_shift, -STATE_LIMIT, STATE_LIMIT);
  let reset = gated(sigmoid_fixed(input_of(at, 0u) + sums[0]), product) << params.product_shift;
  let fresh = (tanh_fixed(input_of(at, 2u) + reset) << 1u) >> params.state_shift;
  let mixed = fresh + gated(sigmoid_fixed(input_of(at, 1u) + sums[1]), hidden - fresh);
  return Next(mixed, mixed);
}
