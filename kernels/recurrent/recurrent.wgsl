// A workgroup runs all steps of one row of the batch; its threads share the units. Hidden states are in workgroup
// memory, also packed for the product of the next step. The cell state of a unit is in a register of its thread.
// Linked: the constants in capitals; Real, first_hidden, first_state, cell_step, pack, store_step, store_end.

const OWN = (UNITS + THREADS - 1u) / THREADS;
const BLOCK = 8u;

var<workgroup> hidden_states: array<Real, UNITS>;

struct Next { hidden: Real, state: Real }

// Coordinates in a sequence: of column `unit`, in step `time` of a row.
fn sequence_coord(row: u32, time: u32, unit: u32) -> vec4<u32> {
  return select(vec4<u32>(0u, time, row, unit), vec4<u32>(0u, row, time, unit), params.batch_first == 1u);
}

// Where the weights of a unit's gate and four items are, from `item` on. Those of BLOCK units lie together.
fn vector_at(item: u32, gate: u32, unit: u32) -> u32 {
  return ((unit / BLOCK * (ITEMS / 4u) + item / 4u) * GATES + gate) * BLOCK + unit % BLOCK;
}

@compute @workgroup_size(THREADS)
fn main(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) thread: u32,
) {
  let row = group.y * groups.x + group.x;
  if (row >= params.batch) { return; }

  var states: array<Real, OWN>;
  for (var k = 0u; k < OWN; k++) {
    let unit = k * THREADS + thread;
    if (unit < UNITS) {
      hidden_states[unit] = first_hidden(row, unit);
      states[k] = first_state(row, unit);
    }
  }
  workgroupBarrier();
  for (var item = thread; item < ITEMS; item += THREADS) { pack(item); }
  workgroupBarrier();

  let steps = loop_end(params.steps, row);
  for (var i = 0u; i < steps; i++) {
    let time = select(i, params.steps - 1u - i, params.reverse == 1u);
    for (var k = 0u; k < OWN; k++) {
      let unit = k * THREADS + thread;
      if (unit < UNITS) {
        let next = cell_step(sequence_coord(row, time, unit), hidden_states[unit], states[k]);
        hidden_states[unit] = next.hidden;
        states[k] = next.state;
      }
    }
    workgroupBarrier();
    for (var item = thread; item < ITEMS; item += THREADS) {
      pack(item);
      store_step(row, time, item);
    }
    workgroupBarrier();
  }

  for (var k = 0u; k < OWN; k++) {
    let unit = k * THREADS + thread;
    if (unit < UNITS) { store_end(row, unit, states[k]); }
  }
}

// The result is all hidden states, the last state, or both.
fn store_step_of_state(row: u32, time: u32, item: u32) {}
fn store_end_of_sequence(row: u32, unit: u32, state: Real) {}
