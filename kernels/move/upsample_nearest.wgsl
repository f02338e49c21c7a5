fn compute(p: vec4<u32>) -> Element {
  let row = source_of(p.z, params.step_h, params.x_dims.z);
  let column = source_of(p.w, params.step_w, params.x_dims.w);
  return x_at(vec4<u32>(p.xy, row, column));
}
