// im2col of 4C tensors, a word or a vector of four at a time: a pixel of the result holds its taps' channels in order.
// Linked: outside and within (im2col_narrow, im2col_wide).

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
  let index = id.y * groups.x * 64u + id.x;
  let unit = index % params.units;
  let r = index / params.units;
  let taps = params.kernel.x * params.kernel.y;
  let tap = r % taps;
  let line = r / taps / params.y_dims.w;
  let n = line / params.y_dims.z;
  if (n >= params.y_dims.x) { return; }
  // Unsigned: a row or column before the image wraps to a huge number.
  let row = line % params.y_dims.z * params.stride.x + tap / params.kernel.y * params.dilation.x - params.padding.x;
  let column = r / taps % params.y_dims.w * params.stride.y + tap % params.kernel.y * params.dilation.y - params.padding.y;
  if (row >= params.x_dims.z || column >= params.x_dims.w) {
    y[index] = outside();
    return;
  }
  y[index] = within(x[((n * params.x_dims.z + row) * params.x_dims.w + column) * params.units + unit], unit);
}
