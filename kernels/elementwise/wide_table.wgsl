// A table of int16 values or of int16 entries: four lookups for each word. The first entry is that of the smallest
// value.
fn combine(x: x_Word) -> Word {
  let at = vec4<u32>(x_lanes(x) - SMALLEST);
  return packed(vec4<i32>(entry_of(at.x), entry_of(at.y), entry_of(at.z), entry_of(at.w)));
}

// An entry, which has ENTRY_BITS bits, 8 or 16.
fn entry_of(at: u32) -> i32 {
  let bit = at * ENTRY_BITS;
  return extractBits(bitcast<i32>(table[bit / 32u]), bit % 32u, ENTRY_BITS);
}
