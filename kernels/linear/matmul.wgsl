// Batch dimensions of extent 1 are read at 0.
alias Partial = f32;
fn merge(a: Partial, b: Partial) -> Partial { return a + b; }

fn part(p: vec4<u32>, first: vec4<u32>) -> Partial {
  let a_batch = min(p.xy, params.a_dims.xy - 1u);
  let b_batch = min(p.xy, params.b_dims.xy - 1u);
  var sum = 0.0;
  for (var k = first.w; k < params.a_dims.w; k += STEPS.w) {
    sum += a_at(vec4<u32>(a_batch, p.z, k)) * b_at(vec4<u32>(b_batch, k, p.w));
  }
  return sum;
}

fn finish(p: vec4<u32>, sum: Partial) -> f32 { return sum; }
