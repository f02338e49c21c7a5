fn compute(p: vec4<u32>) -> f32 {
  var sum = bias[p.y];
  let first = p.y / params.channels_per_group * params.depth_per_group;
  var at = p.y * params.depth_per_group * params.kernel.x * params.kernel.y;
  for (var k = 0u; k < params.depth_per_group; k++) {
    for (var ky = 0u; ky < params.kernel.x; ky++) {
      let row = p.z * params.stride.x + ky * params.dilation.x - params.padding.x;
      for (var kx = 0u; kx < params.kernel.y; kx++) {
        let column = p.w * params.stride.y + kx * params.dilation.y - params.padding.y;
        if (row < params.x_dims.z && column < params.x_dims.w) {
          sum += x_at(vec4<u32>(p.x, first + k, row, column)) * weight[at];
        }
        at += 1u;
      }
    }
  }
  return sum;
}
