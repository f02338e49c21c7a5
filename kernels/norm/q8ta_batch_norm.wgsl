fn compute(p: vec4<u32>) -> i32 {
  let c = index_WIDTH_PACKED(p, params.y_dims) / params.inner % params.channels;
  let v = scaled_accumulator(x_at(p) - params.x_zero, multiplier[c]) + offset[c];
  return clamp(rte(v, FRACTION) + params.zero, params.lo, params.hi);
}
