alias Partial = f32;
fn merge(a: Partial, b: Partial) -> Partial { return a + b; }

// Of a row and a column only the taps count whose place lies on the stride: every tap_step-th one, from `phase` on.
fn partial_result(p: vec4<u32>, first: vec4<u32>) -> Partial {
  var sum = 0.0;
  let step = params.tap_step.xy;
  let phase = (p.zw + params.padding.xy) % step;
  let channel = p.y / params.channels_per_group * params.depth_per_group;
  let depth = loop_end(params.depth_per_group, p.y);
  let window = vec2<u32>(loop_end(params.kernel.x, p.z), loop_end(params.kernel.y, p.w));
  for (var ky = phase.x + first.z * step.x; ky < window.x; ky += STEPS.z * step.x) {
    // Unsigned: a row before the image wraps to a huge number.
    let row = p.z + params.padding.x - ky * params.dilation.x;
    for (var kx = phase.y + first.w * step.y; kx < window.y; kx += STEPS.w * step.y) {
      let column = p.w + params.padding.y - kx * params.dilation.y;
      let between = row % params.stride.x + column % params.stride.y;
      let q = vec2<u32>(row / params.stride.x, column / params.stride.y);
      if (between == 0u && q.x < params.x_dims.z && q.y < params.x_dims.w) {
        for (var k = first.y; k < depth; k += STEPS.y) {
          let at = ((p.y * params.depth_per_group + k) * params.kernel.x + ky) * params.kernel.y + kx;
          sum += x_at(vec4<u32>(p.x, channel + k, q.x, q.y)) * weight[at];
        }
      }
    }
  }
  return sum;
}

fn finish(p: vec4<u32>, sum: Partial) -> f32 { return sum + bias[p.y]; }
