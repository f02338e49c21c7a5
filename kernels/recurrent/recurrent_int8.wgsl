// Layers in integers, as defined in kernels/recurrent/cells.py and q8ta_recurrent.py. An item is four hidden states, a
// word of an integer result. The product reads each hidden state as two int8.
alias Real = i32;

const KNOT_BITS = 10u;
const STATE_LIMIT = 8388607;
const SUM_LIMIT = 134217728.0;
const VECTORS = PACE / 4u;

var<workgroup> high: array<u32, ITEMS>;
var<workgroup> low: array<u32, ITEMS>;

fn first_of(row: u32, rows: u32) -> u32 { return min(row, rows - 1u); }

// A first state in fixed point, where 1.0 is `steps`. NaN is 0.
fn fixed(x: f32, steps: f32, limit: f32) -> i32 { return round_within(select(x * steps, 0.0, is_nan(x)), limit); }

fn first_hidden(row: u32, unit: u32) -> i32 {
  let first = hidden_at(vec4<u32>(0u, 0u, first_of(row, params.hidden_dims.z), unit));
  return fixed(first, params.hidden_steps, params.hidden_limit);
}

fn hidden_word(item: u32) -> vec4<i32> {
  var found = vec4<i32>(0);
  for (var lane = 0u; lane < 4u; lane++) {
    if (item * 4u + lane < UNITS) { found[lane] = hidden_states[item * 4u + lane]; }
  }
  return found;
}

fn pack(item: u32) {
  let carried = rte_quad(hidden_word(item), params.carry);
  let upper = (carried + 128) >> vec4<u32>(8u);
  high[item] = pack4xI8(upper);
  low[item] = pack4xI8(carried - upper * 256);
}

fn store_step_of_sequence(row: u32, time: u32, item: u32) {
  if (item < quads(UNITS)) {
    let steps = clamp(round(vec4<f32>(hidden_word(item)) * params.scale), vec4<f32>(-1048576.0), vec4<f32>(1048576.0));
    let steps_in_range = clamp(vec4<i32>(steps) + params.zero, vec4<i32>(params.lo), vec4<i32>(params.hi));
    y[y_index(sequence_coord(row, time, item * 4u))] = packed(steps_in_range);
  }
}

fn store_step_of_real_sequence(row: u32, time: u32, item: u32) {
  for (var unit = item * 4u; unit < min(item * 4u + 4u, UNITS); unit++) {
    y[y_index(sequence_coord(row, time, unit))] = f32(hidden_states[unit]) * params.scale;
  }
}

fn store_end_of_state(row: u32, unit: u32, state: i32) { y[y_index(vec4<u32>(0u, 0u, row, unit))] = f32(state) * params.state_step; }

fn store_end_of_both(row: u32, unit: u32, state: i32) {
  y[y_index(sequence_coord(row, params.steps, unit))] = f32(state) * params.state_step;
}

// The products of a unit's rows of the weight, one for each gate, with the hidden states, plus the bias.
fn products(unit: u32) -> array<i32, GATES> {
  var upper: array<i32, GATES>;
  var lower: array<i32, GATES>;
  let items = loop_end(params.items, unit);
  for (var first = 0u; first < items; first += PACE) {
    for (var v = 0u; v < VECTORS; v++) {
      let item = first + v * 4u;
      let above = vec4<u32>(high[item], high[item + 1u], high[item + 2u], high[item + 3u]);
      let below = vec4<u32>(low[item], low[item + 1u], low[item + 2u], low[item + 3u]);
      for (var g = 0u; g < GATES; g++) {
        let words = weight[vector_at(item, g, unit)];
        for (var i = 0u; i < 4u; i++) {
          upper[g] += dot4(words[i], above[i]);
          lower[g] += dot4(words[i], below[i]);
        }
      }
    }
  }
  var sums: array<i32, GATES>;
  for (var g = 0u; g < GATES; g++) {
    let by = multiplier[g * UNITS + unit];
    let terms = round_within(f32(upper[g]) * (by * 256.0), SUM_LIMIT) + round_within(f32(lower[g]) * by, SUM_LIMIT);
    sums[g] = terms + bias[g * UNITS + unit];
  }
  return sums;
}

fn input_of(at: vec4<u32>, gate: u32) -> i32 { return pre_at(at + vec4<u32>(0u, 0u, 0u, gate * UNITS)) << 6u; }

fn tanh_fixed(x: i32) -> i32 {
  let size = min(abs(x), 524287);
  let at = size >> KNOT_BITS;
  let fraction = size & ((1 << KNOT_BITS) - 1);
  let value = knots[at] + (((knots[at + 1] - knots[at]) * fraction + (1 << (KNOT_BITS - 1u))) >> KNOT_BITS);
  return select(value, -value, x < 0);
}

fn sigmoid_fixed(x: i32) -> i32 { return (32768 + tanh_fixed(x >> 1u)) >> 1u; }

fn gated(gate: i32, x: i32) -> i32 { return (gate * (x >> 8u) + ((gate * (x & 255) + 128) >> 8u) + 64) >> 7u; }
