// Returns `end`, a uniform number below 2^31, in a form that a compiler must take for different in each thread. `own`
// is any number of the thread. It is for the ends of loops: Mesa's lavapipe unrolls loops whose ends follow from
// uniforms alone. For that it compiles the kernel again at each dispatch, and does not free the memory.
fn loop_end(end: u32, own: u32) -> u32 { return min(end, own | 0x80000000u); }
