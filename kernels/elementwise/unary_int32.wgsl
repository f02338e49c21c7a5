// Functions of one tensor of integers; params.a and .b as in unary.wgsl.
// Uses unary.
fn compared_int32(p: vec4<u32>) -> f32 {
  let x = x_at(p);
  switch FUNCTION {
    case GT_SCALAR: { return truth(x > params.a); }
    case GE_SCALAR: { return truth(x >= params.a); }
    case LT_SCALAR: { return truth(x < params.a); }
    case LE_SCALAR: { return truth(x <= params.a); }
    case EQ_SCALAR: { return truth(x == params.a); }
    case NE_SCALAR, default: { return truth(x != params.a); }
  }
}

fn computed_int32(p: vec4<u32>) -> i32 {
  let x = x_at(p);
  switch FUNCTION {
    case ABS: { return abs(x); }
    case SIGN: { return sign(x); }
    case CLAMP: { return clamp(x, params.a, params.b); }
    case FLOOR_DIVIDE: { return floor_quotient_int32(x, params.a); }
    case TRUNC_DIVIDE: { return x / params.a; }
    case REMAINDER: { return floor_remainder_int32(x, params.a); }
    case FMOD: { return remainder_of_int32(x, params.a); }
    case AFFINE, default: { return params.a * x + params.b; }
  }
}

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
