// How a team shares four loops, one in another: the places they begin at for each thread, and how far they step. One
// thread alone takes every place. Linked: STEP_0 ... STEP_3, the threads side by side along each loop.
const STEPS = vec4<u32>(STEP_0, STEP_1, STEP_2, STEP_3);

fn first_of(lane: u32) -> vec4<u32> {
  return vec4<u32>(lane / (STEP_1 * STEP_2 * STEP_3), lane / (STEP_2 * STEP_3), lane / STEP_3, lane) % STEPS;
}

// An element by one thread, for kernels whose loops can be shared (kernels/lib/share.py).
fn compute(p: vec4<u32>) -> Element { return finish(p, part(p, vec4<u32>())); }
