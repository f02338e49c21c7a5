// Rows of the product are the pixels of the result, in order. There is one phase.
fn phase_of(m: u32) -> u32 { return 0u; }
fn steps_of(phase: u32) -> u32 { return params.steps; }
fn pixel_of(m: u32) -> u32 { return m; }
