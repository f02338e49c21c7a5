// The integer average of the elements in window(p) (windows.wgsl): the sum of (x - x_zero) times multiplier_of(window).
alias Partial = i32;
fn merge(a: i32, b: i32) -> i32 { return a + b; }
fn first_item(start: vec4<u32>) -> i32 { return 0; }
fn item(x: i32) -> i32 { return x - params.x_zero; }
fn finish(p: vec4<u32>, sum: i32) -> i32 { return averaged_steps(sum, multiplier_of(window(p))); }

fn averaged_steps(sum: i32, multiplier: f32) -> i32 {
  return clamp(round_within(f32(sum) * multiplier, STEPS_LIMIT) + params.zero, params.lo, params.hi);
}
