// With a mask, the steps that a block needs: up to the last one in which a row has an unmasked element. The conversion
// of STEPS hides the number from q8ta_wgpu/program/unroll.py, since steps that are skipped take time in an unrolled
// loop.

const STEPS = u32(STEPS_OF_KEYS);

// For each row, the index after the last word with an unmasked element.
var<workgroup> ends: array<atomic<u32>, ROWS>;
var<workgroup> steps_needed: u32;

fn needed_steps(block: Block, local: u32) -> u32 {
  if (local < ROWS) { atomicStore(&ends[local], 0u); }
  workgroupBarrier();
  let row = local / TEAM;
  let query = min(block.first + row, params.queries - 1u);
  atomicMax(&ends[row], unmasked_end(vec3<u32>(block.batch, block.head, query), local % TEAM, TEAM));
  workgroupBarrier();
  if (local == 0u) {
    var most = 0u;
    for (var i = 0u; i < ROWS; i++) { most = max(most, needed_end(atomicLoad(&ends[i]))); }
    steps_needed = (most + KEYS / 4u - 1u) / (KEYS / 4u);
  }
  return workgroupUniformLoad(&steps_needed);
}
