// Depthwise taps by packed dot products: a value is four pixels of four channels, turned so that a word has the pixels of
// one channel. Weights are vectors in order (channel quad, row of the window, column of the strip, value), a word for each
// channel: its taps where the window of that column has these pixels, else 0.
alias Value = vec4<u32>;
alias Tap = vec4<u32>;

const PIXELS = 4u;
const VALUE_STEP = 0u;
const TAPS = VALUES;
const TAP_STEP = VALUES;
const ROW_TAPS = COLUMNS * VALUES;

fn value_of(a: u32, b: u32, c: u32, d: u32) -> Value {
  let even = vec2<u32>((a & 0xff00ffu) | ((b & 0xff00ffu) << 8u), (c & 0xff00ffu) | ((d & 0xff00ffu) << 8u));
  let odd = vec2<u32>(((a >> 8u) & 0xff00ffu) | (b & 0xff00ff00u), ((c >> 8u) & 0xff00ffu) | (d & 0xff00ff00u));
  return vec4<u32>(
    (even.x & 0xffffu) | (even.y << 16u), (odd.x & 0xffffu) | (odd.y << 16u),
    (even.x >> 16u) | (even.y & 0xffff0000u), (odd.x >> 16u) | (odd.y & 0xffff0000u));
}

fn tap_at(index: u32) -> Tap { return weight[index]; }
fn add_tap(acc: vec4<i32>, value: Value, tap: Tap) -> vec4<i32> {
  return acc + vec4<i32>(dot4(value.x, tap.x), dot4(value.y, tap.y), dot4(value.z, tap.z), dot4(value.w, tap.w));
}
