// The integer average of the elements in window(p) (windows.wgsl): the sum of (x - x_zero) times multiplier_of(window).
// High bytes and low bytes are summed separately, since a sum of int16 may pass int32. One that does loses its 8 low
// bits.
alias Partial = vec2<i32>;
fn merge(a: Partial, b: Partial) -> Partial { return a + b; }
fn first_item(start: vec4<u32>) -> Partial { return Partial(0); }

fn item(x: i32) -> Partial {
  let v = x - params.x_zero;
  return Partial(v >> 8u, v & 255);
}

fn finish(p: vec4<u32>, sum: Partial) -> i32 {
  let high = sum.x + (sum.y >> 8u);
  let multiplier = multiplier_of(window(p));
  if (high < -0x800000 || high >= 0x800000) { return averaged_steps(high, multiplier * 256.0); }
  return averaged_steps((high << 8u) + (sum.y & 255), multiplier);
}

fn averaged_steps(sum: i32, multiplier: f32) -> i32 {
  return clamp(round_within(f32(sum) * multiplier, STEPS_LIMIT) + params.zero, params.lo, params.hi);
}
