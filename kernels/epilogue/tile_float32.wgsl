// One thread computes four output channels of a float32 result: accumulate(p) -> their accumulators.
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
  let tile = id.y * groups.x * 64u + id.x;
  if (tile >= params.tiles) { return; }
  let p = tile_coord(tile);
  let acc = accumulate(p);
  for (var i = 0u; i < 4u; i++) {
    let at = p + i * TILE_LANE;
    if (any(at >= params.sums)) { return; }
    y[place(row_of_sum(at), output_of(at))] = real_of(acc[i], channel_of(at), at);
  }
}
