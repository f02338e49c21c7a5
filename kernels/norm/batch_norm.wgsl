fn batch_norm(p: vec4<u32>) -> f32 {
  let c = index_WIDTH_PACKED(p, params.y_dims) / params.inner % params.channels;
  return (x_at(p) - mean[c]) * inverseSqrt(variance[c] + params.eps) * gamma[c] + beta[c];
}
