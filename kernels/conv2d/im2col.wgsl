// The windows of a convolution as channels, in 4C: a pixel of the result has the channels of all its taps, tap after
// tap.

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
  let index = id.y * groups.x * 64u + id.x;
  let window = index / params.groups;
  let taps = params.kernel.x * params.kernel.y;
  let tap = window % taps;
  let pixel = window / taps;
  let line = pixel / params.y_dims.w;
  let n = line / params.y_dims.z;
  if (n >= params.y_dims.x) { return; }
  // Unsigned: a row or column before the image wraps to a huge number.
  let row = line % params.y_dims.z * params.stride.x + tap / params.kernel.y * params.dilation.x - params.padding.x;
  let column = pixel % params.y_dims.w * params.stride.y + tap % params.kernel.y * params.dilation.y - params.padding.y;
  if (row >= params.x_dims.z || column >= params.x_dims.w) {
    y[index] = Words(params.outside);
  } else {
    y[index] = x[((n * params.x_dims.z + row) * params.x_dims.w + column) * params.groups + index % params.groups];
  }
}
