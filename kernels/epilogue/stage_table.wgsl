// The table's entry for the int8 value.
fn joined(v: vec4<i32>, m: u32, quad: u32) -> vec4<i32> {
  return vec4<i32>(looked_up(v.x), looked_up(v.y), looked_up(v.z), looked_up(v.w));
}

fn looked_up(v: i32) -> i32 { return lane(table[u32(v + 128) / 4u], u32(v + 128) % 4u); }
