// A main for kernels that give words_of(p): 4C as a grid of pixels, params.groups Words each. A thread makes ITEMS
// of them, a workgroup apart, and stores none before it has loaded for all.

// A thread's pixel as (n, group, h, w): the index among the pixel's Words stands for the channel.
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
fn main(@builtin(local_invocation_index) local: u32,
        @builtin(workgroup_id) group: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>) {
  let first = (group.y * groups.x + group.x) * 64u * ITEMS + local;
  var found: array<Words, ITEMS>;
  for (var i = 0u; i < ITEMS; i++) { found[i] = words_of(pixel_coord(first + i * 64u)); }
  for (var i = 0u; i < ITEMS; i++) {
    let at = first + i * 64u;
    if (at < params.items) { y[at] = found[i]; }
  }
}
