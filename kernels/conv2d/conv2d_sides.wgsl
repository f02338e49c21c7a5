// A convolution as products of each group's weights with the pixels its taps reach, for each image: batches are groups of
// images, rows channels, columns pixels, k counts channels and taps.
fn left_item(at: u32) -> Item { return weight[at]; }
fn right_item(at: u32) -> Item { return x[at]; }
fn group_of(batch: u32) -> u32 { return batch % (params.y_dims.y / params.rows); }
fn left_of(batch: u32) -> u32 { return group_of(batch) * params.rows * params.depth; }
fn right_of(batch: u32) -> u32 { return batch * params.depth_per_group * params.x_dims.z * params.x_dims.w; }
fn start(batch: u32, m: u32, n: u32) -> vec4<f32> { return vec4<f32>(bias[group_of(batch) * params.rows + m]); }
