// Rows of x that are contiguous along k: a linear's, or the pixels a 1x1 convolution without padding reads.

struct Row { first: u32 }

alias KOffset = u32;

fn k_offset_of(k: u32) -> KOffset { return k; }

// gemm_registers.wgsl may compute an offset from that of the step before. Here the offset is k itself.
fn k_offset_from(found: KOffset, k: u32) -> KOffset { return k; }
fn k_offset_after(k_offset: KOffset) -> KOffset { return 0u; }

fn load_x(row: Row, k_offset: KOffset) -> RowVector { return x_vector(row.first, k_offset); }
