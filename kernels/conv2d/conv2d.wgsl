alias Partial = f32;
fn merge(a: Partial, b: Partial) -> Partial { return a + b; }

fn partial_result(p: vec4<u32>, first: vec4<u32>) -> Partial {
  var sum = 0.0;
  let channel = p.y / params.channels_per_group * params.depth_per_group;
  let depth = loop_end(params.depth_per_group, p.y);
  let window = vec2<u32>(loop_end(params.kernel.x, p.z), loop_end(params.kernel.y, p.w));
  for (var k = first.y; k < depth; k += STEPS.y) {
    for (var ky = first.z; ky < window.x; ky += STEPS.z) {
      let row = p.z * params.stride.x + ky * params.dilation.x - params.padding.x;
      let at = ((p.y * params.depth_per_group + k) * params.kernel.x + ky) * params.kernel.y;
      for (var kx = first.w; kx < window.y; kx += STEPS.w) {
        let column = p.w * params.stride.y + kx * params.dilation.y - params.padding.y;
        if (row < params.x_dims.z && column < params.x_dims.w) {
          sum += x_at(vec4<u32>(p.x, channel + k, row, column)) * weight[at + kx];
        }
      }
    }
  }
  return sum;
}

fn finish(p: vec4<u32>, sum: Partial) -> f32 { return sum + bias[p.y]; }

// A convolution as a batched matrix product, of a group's weights with the pixels that its taps read. Batches are
// groups of images, rows channels, columns pixels, k counts channels and taps.
fn left_item(at: u32) -> Item { return weight[at]; }
fn right_item(at: u32) -> Item { return x[at]; }
fn group_of(batch: u32) -> u32 { return batch % (params.y_dims.y / params.rows); }
fn left_of(batch: u32) -> u32 { return group_of(batch) * params.rows * params.depth; }
fn right_of(batch: u32) -> u32 { return batch * params.depth_per_group * params.x_dims.z * params.x_dims.w; }
fn start(batch: u32, m: u32, n: u32) -> vec4<f32> { return vec4<f32>(bias[group_of(batch) * params.rows + m]); }

// The image as a matrix (tap, pixel), gathered while loading. Taps outside of the image are 0.
fn pixel(plane: u32, tap: vec2<u32>, n: u32) -> f32 {
  let p = vec2<u32>(n / params.y_dims.w, n % params.y_dims.w) * params.stride.xy + tap;
  if (any(p >= params.x_dims.zw)) { return 0.0; }
  return x[plane + p.x * params.x_dims.w + p.y];
}

fn gathered_quad(base: u32, k: u32, n: u32) -> vec4<f32> {
  if (k >= params.depth) { return vec4<f32>(); }
  let row = k / params.kernel.y;
  let tap = vec2<u32>(row % params.kernel.x, k % params.kernel.y) * params.dilation.xy - params.padding.xy;
  let plane = base + row / params.kernel.x * params.x_dims.z * params.x_dims.w;
  return vec4<f32>(
    pixel(plane, tap, n), pixel(plane, tap, n + STRIDE), pixel(plane, tap, n + 2u * STRIDE),
    pixel(plane, tap, n + 3u * STRIDE),
  );
}
