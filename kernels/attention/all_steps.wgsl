// A block without a mask: all steps are work.

const STEPS = TURNS;

fn taken_steps(block: Block, local: u32) -> u32 { return STEPS; }
