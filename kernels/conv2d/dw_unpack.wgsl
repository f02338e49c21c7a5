// A depthwise tap by multiplication. Weights are words in order (channel quad, tap), with a lane for each channel.
alias Value = vec4<i32>;
alias Tap = vec4<i32>;

const EDGES_ONCE = false;

fn value_of(word: x_Word) -> Value { return x_lanes(word); }
fn tap_at(index: u32) -> Tap { return unpack4xI8(weight[index]); }
fn add_tap(acc: vec4<i32>, value: Value, tap: Tap) -> vec4<i32> { return acc + value * tap; }
