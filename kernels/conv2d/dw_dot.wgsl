// A depthwise tap by packed dot products, which need no unpacking. Weights are vectors in order (channel quad, tap),
// with a word for each channel: the word of channel i has its weight in lane i, and 0 in the other lanes.
alias Value = u32;
alias Tap = vec4<u32>;

const EDGES_ONCE = true;

fn value_of(word: u32) -> Value { return word; }
fn tap_at(index: u32) -> Tap { return weight[index]; }
fn add_tap(acc: vec4<i32>, value: Value, tap: Tap) -> vec4<i32> {
  return acc + vec4<i32>(
    dot4(value, tap.x), dot4(value, tap.y), dot4(value, tap.z), dot4(value, tap.w));
}
