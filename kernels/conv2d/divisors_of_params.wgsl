// The divisors by which the offsets of a window are computed.
fn pixel_words() -> u32 { return params.row_words; }
fn kernel_width() -> u32 { return params.kernel.y; }
