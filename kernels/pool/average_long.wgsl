// The same for sums of int16 that may pass int32: high bytes and low bytes are summed separately. A sum past int32
// loses its 8 low bits.
// Uses average_packed.
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
