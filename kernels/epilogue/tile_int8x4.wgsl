// One thread computes one word of the result, four output channels: accumulate(p) -> their accumulators.
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
  let word = id.y * groups.x * 64u + id.x;
  if (word >= params.words) { return; }
  let p = y_coord(word);
  if (any(p >= params.y_dims)) {
    y[word] = 0u;
    return;
  }
  let acc = accumulate(p);
  let c = channel_of(p);
  var q: vec4<i32>;
  q.x = requantize(acc.x, c, p);
  // Lanes past the last channel read their residual from the last one; their value is never used.
  q.y = requantize(acc.y, c + 1u, min(p + Y_LANE, params.y_dims - 1u));
  q.z = requantize(acc.z, c + 2u, min(p + 2u * Y_LANE, params.y_dims - 1u));
  q.w = requantize(acc.w, c + 3u, min(p + 3u * Y_LANE, params.y_dims - 1u));
  y[word] = pack4xI8(q);
}
