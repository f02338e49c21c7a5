alias Partial = f32;
fn merge(a: Partial, b: Partial) -> Partial { return a + b; }

fn part(p: vec4<u32>, first: vec4<u32>) -> Partial {
  var sum = 0.0;
  for (var k = first.w; k < params.x_dims.w; k += STEPS.w) {
    sum += x_at(vec4<u32>(p.xyz, k)) * weight[p.w * params.x_dims.w + k];
  }
  return sum;
}

fn finish(p: vec4<u32>, sum: Partial) -> f32 { return sum + bias[p.w]; }
