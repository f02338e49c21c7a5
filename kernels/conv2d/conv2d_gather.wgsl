// The image as a matrix of pixels for each tap, gathered while loading; taps outside the image are 0.
fn pixel(plane: u32, tap: vec2<u32>, n: u32) -> f32 {
  let p = vec2<u32>(n / params.y_dims.w, n % params.y_dims.w) * params.stride.xy + tap;
  if (any(p >= params.x_dims.zw)) { return 0.0; }
  return x[plane + p.x * params.x_dims.w + p.y];
}

fn right_quad(base: u32, k: u32, n: u32) -> vec4<f32> {
  if (k >= params.depth) { return vec4<f32>(); }
  let row = k / params.kernel.y;
  let tap = vec2<u32>(row % params.kernel.x, k % params.kernel.y) * params.dilation.xy - params.padding.xy;
  let plane = base + row / params.kernel.x * params.x_dims.z * params.x_dims.w;
  return vec4<f32>(
    pixel(plane, tap, n), pixel(plane, tap, n + STRIDE), pixel(plane, tap, n + 2u * STRIDE),
    pixel(plane, tap, n + 3u * STRIDE),
  );
}
