// A depthwise tap by multiplication: a value is the four channels of a pixel. Weights are words in order (channel quad,
// tap), with a lane for each channel.
alias Value = vec4<i32>;
alias Tap = vec4<i32>;

const PIXELS = 1u;
const VALUE_STEP = STRIDE_X;
const TAPS = KERNEL_X;
const TAP_STEP = 0u;
const ROW_TAPS = KERNEL_X;

fn value_of(word: u32, b: u32, c: u32, d: u32) -> Value { return x_lanes(word); }
fn tap_at(index: u32) -> Tap { return unpack4xI8(weight[index]); }
fn add_tap(acc: vec4<i32>, value: Value, tap: Tap) -> vec4<i32> { return acc + value * tap; }
