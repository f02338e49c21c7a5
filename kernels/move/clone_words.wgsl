fn combine(x: u32) -> u32 { return x; }
