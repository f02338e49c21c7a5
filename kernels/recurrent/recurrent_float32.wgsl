// Layers in float32: an item is a hidden state.
alias Real = f32;

var<workgroup> product_operand: array<f32, ITEMS>;

fn first_of(row: u32, rows: u32) -> u32 { return min(row, rows - 1u); }

fn first_hidden(row: u32, unit: u32) -> f32 {
  return hidden_at(vec4<u32>(0u, 0u, first_of(row, params.hidden_dims.z), unit));
}

fn pack(item: u32) {
  if (item < UNITS) { product_operand[item] = hidden_states[item]; } else { product_operand[item] = 0.0; }
}

fn store_step_of_sequence(row: u32, time: u32, item: u32) {
  if (item < UNITS) { y[y_index(sequence_coord(row, time, item))] = hidden_states[item]; }
}

fn store_end_of_state(row: u32, unit: u32, state: f32) { y[y_index(vec4<u32>(0u, 0u, row, unit))] = state; }

fn store_end_of_both(row: u32, unit: u32, state: f32) { y[y_index(sequence_coord(row, params.steps, unit))] = state; }

// The products of a unit's rows of the weight, one for each gate, with the hidden states, plus the bias.
fn products(unit: u32) -> array<f32, GATES> {
  var sums: array<f32, GATES>;
  let items = loop_end(params.items, unit);
  for (var first = 0u; first < items; first += PACE) {
    for (var v = 0u; v < PACE; v += 4u) {
      let item = first + v;
      for (var g = 0u; g < GATES; g++) {
        let factors = weight[vector_at(item, g, unit)];
        for (var i = 0u; i < 4u; i++) { sums[g] += factors[i] * product_operand[item + i]; }
      }
    }
  }
  for (var g = 0u; g < GATES; g++) { sums[g] += bias[g * UNITS + unit]; }
  return sums;
}

fn input_of(at: vec4<u32>, gate: u32) -> f32 { return pre_at(at + vec4<u32>(0u, 0u, 0u, gate * UNITS)); }

// NaN gives NaN. Built-in functions may give a number.
fn sigmoid_float(x: f32) -> f32 { return select(logistic(x), x, is_nan(x)); }
fn tanh_float(x: f32) -> f32 { return select(tanh_of(x), x, is_nan(x)); }
