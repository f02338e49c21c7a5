// Functions of one tensor of integers; params.a and .b as in unary.wgsl.
fn compared_int32(p: vec4<u32>) -> f32 {
  let x = x_at(p);
  switch FUNCTION {
    case GT_SCALAR: { return truth(x > params.a); }
    case GE_SCALAR: { return truth(x >= params.a); }
    case LT_SCALAR: { return truth(x < params.a); }
    case LE_SCALAR: { return truth(x <= params.a); }
    case EQ_SCALAR: { return truth(x == params.a); }
    default: { return truth(x != params.a); }
  }
}

fn computed_int32(p: vec4<u32>) -> i32 {
  let x = x_at(p);
  switch FUNCTION {
    case ABS: { return abs(x); }
    case CLAMP: { return clamp(x, params.a, params.b); }
    case FLOOR_DIVIDE: { return x / params.a - i32(is_below(left_of(x))); }
    case TRUNC_DIVIDE: { return x / params.a; }
    case REMAINDER: { return left_of(x) + select(0, params.a, is_below(left_of(x))); }
    case FMOD: { return left_of(x); }
    default: { return params.a * x + params.b; }
  }
}

// What a division by params.a leaves, with the sign of x. GLSL's % is not defined for negative operands.
fn left_of(x: i32) -> i32 { return x - x / params.a * params.a; }

// Whether what a division leaves has another sign than the divisor: the quotient was rounded up.
fn is_below(left: i32) -> bool { return left != 0 && (left < 0) != (params.a < 0); }
