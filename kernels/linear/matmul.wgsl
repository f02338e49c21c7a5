// Batch dimensions of extent 1 are read at 0.
fn compute(p: vec4<u32>) -> f32 {
  let a_batch = min(p.xy, params.a_dims.xy - 1u);
  let b_batch = min(p.xy, params.b_dims.xy - 1u);
  var sum = 0.0;
  for (var k = 0u; k < params.a_dims.w; k++) {
    sum += a_at(vec4<u32>(a_batch, p.z, k)) * b_at(vec4<u32>(b_batch, k, p.w));
  }
  return sum;
}
