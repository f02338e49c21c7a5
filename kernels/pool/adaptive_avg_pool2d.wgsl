fn window(p: vec4<u32>) -> Window {
  let first = p.zw * params.x_dims.zw / params.y_dims.zw;
  let last = ((p.zw + 1u) * params.x_dims.zw + params.y_dims.zw - 1u) / params.y_dims.zw;
  let counted = last - first;
  return Window(vec4<u32>(p.xy, first), vec4<u32>(p.xy + 1u, last), counted.x * counted.y);
}
