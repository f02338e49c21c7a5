fn compute(p: vec4<u32>) -> f32 {
  return f32(x_at(p) - params.x_zero) * params.scale;
}
