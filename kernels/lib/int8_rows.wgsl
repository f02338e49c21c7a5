// Rows of int8 words in 4W (kernels/lib/rows.py). Each line of `width` elements is padded to whole words. Padding lanes
// have no promised value.

// The number of lanes of word k of a row that are elements, and a mask with all bits of those lanes.
fn lanes_of(k: u32) -> u32 { return min(params.width - k % params.line * 4u, 4u); }
fn bits_of(k: u32) -> u32 { return 0xffffffffu >> (8u * (4u - lanes_of(k))); }
