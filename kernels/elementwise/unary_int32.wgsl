// Functions of one tensor of integers; params.a and .b as in unary.wgsl. Linked: at_integer, NAME_int32 of the operator.
// Uses unary.
fn of_integer(p: vec4<u32>) -> Element { return at_integer(x_at(p)); }

fn gt_scalar_int32(x: i32) -> f32 { return truth(x > params.a); }
fn ge_scalar_int32(x: i32) -> f32 { return truth(x >= params.a); }
fn lt_scalar_int32(x: i32) -> f32 { return truth(x < params.a); }
fn le_scalar_int32(x: i32) -> f32 { return truth(x <= params.a); }
fn eq_scalar_int32(x: i32) -> f32 { return truth(x == params.a); }
fn ne_scalar_int32(x: i32) -> f32 { return truth(x != params.a); }
fn abs_int32(x: i32) -> i32 { return abs(x); }
fn sign_int32(x: i32) -> i32 { return sign(x); }
fn clamp_int32(x: i32) -> i32 { return clamp(x, params.a, params.b); }
fn affine_int32(x: i32) -> i32 { return params.a * x + params.b; }
fn floor_divide_int32(x: i32) -> i32 { return floor_quotient_int32(x, params.a); }
fn trunc_divide_int32(x: i32) -> i32 { return x / params.a; }
fn remainder_int32(x: i32) -> i32 { return floor_remainder_int32(x, params.a); }
fn fmod_int32(x: i32) -> i32 { return remainder_of_int32(x, params.a); }

fn floor_quotient_int32(x: i32, divisor: i32) -> i32 {
  return x / divisor - i32(is_below(remainder_of_int32(x, divisor), divisor));
}

fn floor_remainder_int32(x: i32, divisor: i32) -> i32 {
  let remainder = remainder_of_int32(x, divisor);
  return remainder + select(0, divisor, is_below(remainder, divisor));
}

// The remainder of x / divisor, with the sign of x. It avoids %, which GLSL does not define for negative operands.
fn remainder_of_int32(x: i32, divisor: i32) -> i32 { return x - x / divisor * divisor; }

// Whether a remainder and the divisor have different signs: then x / divisor was rounded up.
fn is_below(remainder: i32, divisor: i32) -> bool { return remainder != 0 && (remainder < 0) != (divisor < 0); }
