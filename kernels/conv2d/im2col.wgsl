fn compute(p: vec4<u32>) -> Element {
  let padded = quads(params.x_dims.y) * 4u;
  let tap = p.y / padded;
  let channel = p.y % padded;
  // Unsigned: a row or column before the image wraps to a huge number.
  let row = p.z * params.stride.x + tap / params.kernel.y * params.dilation.x - params.padding.x;
  let column = p.w * params.stride.y + tap % params.kernel.y * params.dilation.y - params.padding.y;
  let place = vec4<u32>(p.x, channel, row, column);
  if (any(place >= params.x_dims)) { return params.fill; }
  return x_at(place);
}
