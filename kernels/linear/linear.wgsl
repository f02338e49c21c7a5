fn compute(p: vec4<u32>) -> f32 {
  var sum = bias[p.w];
  for (var k = 0u; k < params.x_dims.w; k++) {
    sum += x_at(vec4<u32>(p.xyz, k)) * weight[p.w * params.x_dims.w + k];
  }
  return sum;
}
