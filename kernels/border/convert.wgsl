fn to_float32(p: vec4<u32>) -> f32 { return f32(x_at(p)); }

fn to_int32(p: vec4<u32>) -> i32 {
  let x = x_at(p);
  return i32(select(clamp(x, -2147483648.0, 2147483520.0), 0.0, is_nan(x)));
}

// int8 values of scale 1.
fn steps(p: vec4<u32>) -> i32 { return x_at(p) - params.x_zero; }
