// A call without a mask: all elements take part.

fn part_of(p: vec4<u32>) -> u32 { return 0xffffffffu; }
fn takes_part(p: vec4<u32>) -> bool { return true; }
