// The same as constants: divisions by them are cheap.
fn pixel_words() -> u32 { return PIXEL_WORDS; }
fn kernel_width() -> u32 { return KERNEL_WIDTH; }
