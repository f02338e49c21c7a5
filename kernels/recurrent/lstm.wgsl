// Gates in torch's order: input, forget, cell, output.
fn first_state(row: u32, unit: u32) -> f32 {
  return cell_at(vec4<u32>(0u, 0u, first_of(row, params.cell_dims.z), unit));
}

fn cell_step(at: vec4<u32>, hidden: f32, state: f32) -> Next {
  let sums = products(at.w);
  let remembered = sigmoid_float(input_of(at, 1u) + sums[1]) * state;
  let fresh = remembered + sigmoid_float(input_of(at, 0u) + sums[0]) * tanh_float(input_of(at, 2u) + sums[2]);
  return Next(sigmoid_float(input_of(at, 3u) + sums[3]) * tanh_float(fresh), fresh);
}
