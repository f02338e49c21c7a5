// The dot product of two words of four int8, by one instruction.
const EMULATES = false;
fn dot4(a: u32, b: u32) -> i32 { return dot4I8Packed(a, b); }
