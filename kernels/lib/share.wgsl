// How a team of threads shares four nested loops: where each thread begins, and its steps. A thread alone takes all
// turns. Linked: STEP_0 ... STEP_3, the threads along each loop.
const STEPS = vec4<u32>(STEP_0, STEP_1, STEP_2, STEP_3);

fn first_of(lane: u32) -> vec4<u32> {
  return vec4<u32>(lane / (STEP_1 * STEP_2 * STEP_3), lane / (STEP_2 * STEP_3), lane / STEP_3, lane) % STEPS;
}

// An element by one thread, for kernels whose loops can be shared (kernels/lib/share.py).
fn compute(p: vec4<u32>) -> Element { return finish(p, part(p, vec4<u32>())); }
