// A depthwise tap by float32 multiplication, which is exact: sums stay below 2^22 for kernels of at most 7x7. Weight
// vectors: (channel quad, tap), the bits of four floats.
alias Value = vec4<f32>;
alias Tap = vec4<f32>;
alias Sum = vec4<f32>;

const MAGIC_BITS = 0x4b000000u; // 2^23: its last bits count ones
const MAGIC = 8388736.0;        // 2^23 and the bias of a byte

fn value_of(word: u32) -> Value {
  let v = word ^ 0x80808080u;
  let bytes = (vec4<u32>(v, v >> 8u, v >> 16u, v >> 24u) & vec4<u32>(0xffu)) | vec4<u32>(MAGIC_BITS);
  return bitcast<vec4<f32>>(bytes) - vec4<f32>(MAGIC);
}

fn tap_at(index: u32) -> Tap { return bitcast<vec4<f32>>(weight[index]); }
fn add_tap(acc: Sum, value: Value, tap: Tap) -> Sum { return acc + value * tap; }
fn sum_from(start: vec4<i32>) -> Sum { return vec4<f32>(start); }
fn total(acc: Sum) -> vec4<i32> { return vec4<i32>(acc); }
