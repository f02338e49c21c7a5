// Of a block with a mask, the steps up to the last one of which the mask leaves something to a row are work. A conversion
// hides their number from q8ta_wgpu/program/unroll.py: written out, steps that are passed over take time.

const STEPS = u32(TURNS);

// The word behind the last one of which the mask leaves something, of each row.
var<workgroup> ends: array<atomic<u32>, ROWS>;
var<workgroup> taken: u32;

fn taken_steps(block: Block, local: u32) -> u32 {
  if (local < ROWS) { atomicStore(&ends[local], 0u); }
  workgroupBarrier();
  let row = local / TEAM;
  let query = min(block.first + row, params.queries - 1u);
  atomicMax(&ends[row], last_part(vec3<u32>(block.batch, block.head, query), local % TEAM, TEAM));
  workgroupBarrier();
  if (local == 0u) {
    var most = 0u;
    for (var i = 0u; i < ROWS; i++) { most = max(most, end_of(atomicLoad(&ends[i]))); }
    taken = (most + KEYS / 4u - 1u) / (KEYS / 4u);
  }
  return workgroupUniformLoad(&taken);
}
