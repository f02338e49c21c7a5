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

fn affine_int32(p: vec4<u32>) -> i32 { return params.a * x_at(p) + params.b; }
