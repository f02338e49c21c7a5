// A main for kernels that give words_of(p): 4C as a grid of pixels, params.groups Words each; a thread makes one.

// A thread's pixel, with its place among the pixel's Words in the channel's stead: (n, group, h, w).
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
  let index = id.y * groups.x * 64u + id.x;
  let p = pixel_coord(index);
  if (p.x < params.y_dims.x) { y[index] = words_of(p); }
}
