fn batch_norm(p: vec4<u32>) -> f32 {
  let c = index_WIDTH_PACKED(p, params.y_dims) / params.inner % params.channels;
  return (x_at(p) - mean[c]) * inverseSqrt(variance[c] + params.eps) * gamma[c] + beta[c];
}

fn q8ta_batch_norm(p: vec4<u32>) -> i32 {
  let c = index_WIDTH_PACKED(p, params.y_dims) / params.inner % params.channels;
  let v = scaled_accumulator(x_at(p) - params.x_zero, multiplier[c]) + offset[c];
  return clamp(rte(v, FRACTION) + params.zero, params.lo, params.hi);
}
