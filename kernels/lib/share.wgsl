// How a team of threads shares four nested loops: the indices at which each thread begins, and its steps. A single
// thread takes all turns. Linked: STEP_0 ... STEP_3, the number of threads along each loop.
const STEPS = vec4<u32>(STEP_0, STEP_1, STEP_2, STEP_3);

fn first_of(lane: u32) -> vec4<u32> {
  return vec4<u32>(lane / (STEP_1 * STEP_2 * STEP_3), lane / (STEP_2 * STEP_3), lane / STEP_3, lane) % STEPS;
}

// One thread computes an element.
fn compute(p: vec4<u32>) -> Element { return finish(p, partial_result(p, vec4<u32>())); }
