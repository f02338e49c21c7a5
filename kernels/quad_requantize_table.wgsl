// As quad_requantize, then the table's entry for that int8 value.
fn quad_value(acc: vec4<i32>, channel: Channel, m: u32, quad: u32) -> vec4<i32> {
  let v = finish(scaled_quad(acc, channel.multiplier) + channel.offset);
  return vec4<i32>(looked_up(v.x), looked_up(v.y), looked_up(v.z), looked_up(v.w));
}

fn looked_up(v: i32) -> i32 { return lane(table[u32(v + 128) / 4u], u32(v + 128) % 4u); }
