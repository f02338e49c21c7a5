// A call without a mask.

fn unmasked_bits(p: vec4<u32>) -> u32 { return 0xffffffffu; }
fn is_unmasked(p: vec4<u32>) -> bool { return true; }
