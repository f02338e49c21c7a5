// A main for kernels that define words_of(p) over 4C tensors: each pixel has params.groups Words. A thread makes ITEMS
// of them, 64 apart, and loads for all before it stores the first.

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
