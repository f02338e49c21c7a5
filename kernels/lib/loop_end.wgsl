// A uniform number below 2^31 as one that may differ by thread; `own` is any number of the thread. For loops that end
// there: Mesa's lavapipe compiles a kernel anew at each dispatch, and keeps the memory, to unroll loops whose end
// follows from uniforms alone.
fn loop_end(end: u32, own: u32) -> u32 { return min(end, own | 0x80000000u); }
