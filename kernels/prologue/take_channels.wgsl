// A word of the result: four channels, each a byte of a word of some tensor (take_channels.py says how `channels` names
// it).

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
  let word = id.y * groups.x * 64u + id.x;
  if (word >= params.words) { return; }
  let pixel = word / params.quads;
  let quad = word - pixel * params.quads;
  let low = bitcast<vec4<u32>>(channels[2u * quad]);
  let high = bitcast<vec4<u32>>(channels[2u * quad + 1u]);
  let bytes = vec4<u32>(byte_of(pixel, low.xy), byte_of(pixel, low.zw), byte_of(pixel, high.xy), byte_of(pixel, high.zw));
  let placed = bytes << vec4<u32>(0u, 8u, 16u, 24u);
  y[word] = placed.x | placed.y | placed.z | placed.w;
}

fn byte_of(pixel: u32, channel: vec2<u32>) -> u32 {
  let at = pixel * (channel.y >> 16u) + (channel.y & 0xffffu);
  return (x_item(channel.x >> 8u, at) >> (channel.x & 0xffu)) & 0xffu;
}
