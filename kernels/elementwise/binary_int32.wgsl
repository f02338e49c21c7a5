// Functions of two integers. Dimensions of extent 1 are broadcast. A divisor of 0 counts as 1.
// Uses unary_int32.
fn of_two(p: vec4<u32>) -> Element {
  return function_of_two(a_at(min(p, params.a_dims - 1u)), b_at(min(p, params.b_dims - 1u)));
}

fn gt_int32(a: i32, b: i32) -> f32 { return select(0.0, 1.0, a > b); }
fn ge_int32(a: i32, b: i32) -> f32 { return select(0.0, 1.0, a >= b); }
fn eq_int32(a: i32, b: i32) -> f32 { return select(0.0, 1.0, a == b); }
fn ne_int32(a: i32, b: i32) -> f32 { return select(0.0, 1.0, a != b); }

fn maximum_int32(a: i32, b: i32) -> i32 { return max(a, b); }
fn minimum_int32(a: i32, b: i32) -> i32 { return min(a, b); }

fn floor_divide_tensors_int32(a: i32, b: i32) -> i32 { return floor_quotient_int32(a, select(b, 1, b == 0)); }
fn remainder_tensors_int32(a: i32, b: i32) -> i32 { return floor_remainder_int32(a, select(b, 1, b == 0)); }

fn bitwise_and_int32(a: i32, b: i32) -> i32 { return a & b; }
fn bitwise_or_int32(a: i32, b: i32) -> i32 { return a | b; }
fn bitwise_xor_int32(a: i32, b: i32) -> i32 { return a ^ b; }
fn shift_left_int32(a: i32, b: i32) -> i32 { return a << u32(clamp(b, 0, 31)); }
fn shift_right_int32(a: i32, b: i32) -> i32 { return a >> u32(clamp(b, 0, 31)); }
