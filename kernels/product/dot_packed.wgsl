// Dot product of four int8 with four int8, by the packed instruction where the device has it.
fn dot4(a: u32, b: u32) -> i32 { return dot4I8Packed(a, b); }
