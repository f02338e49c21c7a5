// The part of a prologue times a gate, a number for each channel of an image: rows of 1x1 windows of stride 1.

// A pixel, and the first word of its image's gate.
struct Row { pixel: u32, gate: u32 }
alias KOffset = u32;

fn row_of(m: u32) -> Row { return Row(m, m / params.gate_pixels * quads(params.gate_dims.y)); }
fn k_offset_of(k: u32) -> KOffset { return k; }
fn k_offset_from(found: KOffset, k: u32) -> KOffset { return k; }
fn k_offset_after(k_offset: KOffset) -> KOffset { return 0u; }

fn load_x(row: Row, k_offset: KOffset) -> RowVector {
  let v = part_vector(0u, row.pixel * params.part_0.z + k_offset * VECTOR_ITEMS);
  let at = row.gate + 4u * k_offset;
  return vec4<u32>(gated(v.x, at), gated(v.y, at + 1u), gated(v.z, at + 2u), gated(v.w, at + 3u));
}

fn gated(word: u32, at: u32) -> u32 {
  let product = (unpack4xI8(word) - params.x_zero) * (gate_lanes(gate[at]) - params.g_zero);
  let q = scaled_products(product, params.gate_multiplier) + params.stage_zero;
  return pack4xI8(clamp(q, vec4<i32>(params.stage_lo), vec4<i32>(params.stage_hi)));
}
