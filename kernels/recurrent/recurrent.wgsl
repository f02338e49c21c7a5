// A workgroup runs the steps of one row of the batch, its threads share the units. The operand of a step's product is
// packed in workgroup memory; the cell's own state stays with the unit's thread. Linked: the constants in capitals;
// Real, first_hidden, first_state, cell_step, pack, keep_step, keep_end.

const OWN = (UNITS + THREADS - 1u) / THREADS;

var<workgroup> made: array<Real, UNITS>;

struct Next { hidden: Real, state: Real }

// Of a step of a row, where column `unit` of sequences lies.
fn place(row: u32, time: u32, unit: u32) -> vec4<u32> {
  return select(vec4<u32>(0u, time, row, unit), vec4<u32>(0u, row, time, unit), params.batch_first == 1u);
}

@compute @workgroup_size(THREADS)
fn main(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) thread: u32,
) {
  let row = group.y * groups.x + group.x;
  if (row >= params.batch) { return; }

  var kept: array<Real, OWN>;
  for (var k = 0u; k < OWN; k++) {
    let unit = k * THREADS + thread;
    if (unit < UNITS) {
      made[unit] = first_hidden(row, unit);
      kept[k] = first_state(row, unit);
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
        let next = cell_step(place(row, time, unit), made[unit], kept[k]);
        made[unit] = next.hidden;
        kept[k] = next.state;
      }
    }
    workgroupBarrier();
    for (var item = thread; item < ITEMS; item += THREADS) {
      pack(item);
      keep_step(row, time, item);
    }
    workgroupBarrier();
  }

  for (var k = 0u; k < OWN; k++) {
    let unit = k * THREADS + thread;
    if (unit < UNITS) { keep_end(row, unit, kept[k]); }
  }
}

// What is asked for is either all hidden states or the last state.
fn keep_step_of_state(row: u32, time: u32, item: u32) {}
fn keep_end_of_sequence(row: u32, unit: u32, state: Real) {}
