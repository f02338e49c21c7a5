// A main for kernels that define words_of(p) over 4C tensors: each pixel has params.groups Words. A thread makes one.

// Coordinates (n, group, h, w): `group` is the index among the pixel's Words.
fn pixel_coord(index: u32) -> vec4<u32> {
  let pixel = index / params.groups;
  let row = pixel / params.y_dims.w;
  let n = row / params.y_dims.z;
  return vec4<u32>(n, index - pixel * params.groups, row - n * params.y_dims.z, pixel - row * params.y_dims.w);
}

fn x_group(n: u32, h: u32, w: u32, group: u32) -> Words {
  return x[((n * params.x_dims.z + h) * params.x_dims.w + w) * params.groups + group];
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
  let at = id.y * groups.x * 64u + id.x;
  if (at < params.items) { y[at] = words_of(pixel_coord(at)); }
}
