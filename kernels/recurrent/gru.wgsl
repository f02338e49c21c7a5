// Gates in torch's order: reset, update, new.
fn first_state(row: u32, unit: u32) -> f32 { return first_hidden(row, unit); }

fn cell_step(at: vec4<u32>, hidden: f32, state: f32) -> Next {
  let sums = products(at.w);
  let fresh = tanh_float(input_of(at, 2u) + sigmoid_float(input_of(at, 0u) + sums[0]) * sums[2]);
  let mixed = fresh + sigmoid_float(input_of(at, 1u) + sums[1]) * (hidden - fresh);
  return Next(mixed, mixed);
}
