// Where no mask is given all elements take part.

fn part_of(p: vec4<u32>) -> u32 { return 0xffffffffu; }
