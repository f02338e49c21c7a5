fn compute(p: vec4<u32>) -> f32 {
  var sum = bias[p.y];
  let first = p.y / params.channels_per_group * params.depth_per_group;
  var at = p.y * params.depth_per_group * params.kernel.x * params.kernel.y;
  for (var k = 0u; k < params.depth_per_group; k++) {
    for (var ky = 0u; ky < params.kernel.x; ky++) {
      // Unsigned: a row before the image wraps to a huge number.
      let row = p.z + params.padding.x - ky * params.dilation.x;
      for (var kx = 0u; kx < params.kernel.y; kx++) {
        let column = p.w + params.padding.y - kx * params.dilation.y;
        let between = row % params.stride.x + column % params.stride.y;
        let q = vec2<u32>(row / params.stride.x, column / params.stride.y);
        if (between == 0u && q.x < params.x_dims.z && q.y < params.x_dims.w) {
          sum += x_at(vec4<u32>(p.x, first + k, q.x, q.y)) * weight[at];
        }
        at += 1u;
      }
    }
  }
  return sum;
}
