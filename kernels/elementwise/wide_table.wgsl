// Four lookups a word, of int16 values or entries. The first entry belongs to the smallest value.
fn combine(x: x_Word) -> Word {
  let at = vec4<u32>(x_lanes(x) - SMALLEST);
  return packed(vec4<i32>(entry_of(at.x), entry_of(at.y), entry_of(at.z), entry_of(at.w)));
}

fn int8_entry(at: u32) -> i32 { return lane(table[at / 4u], at % 4u); }

fn int16_entry(at: u32) -> i32 { return half(table[at / 2u], at % 2u); }
