// Rows of x for a transposed convolution: a block of params.phase_rows rows for each phase of the stride
// (stride_phases). k runs over (phase, tap of the phase, channels), in vectors; each phase has params.phase_vectors of
// them. Linked: x_vector (gemm_rows).

struct Row { image: u32, y: u32, x: u32 }
struct KOffset { y: u32, x: u32, vector: u32 }

fn remainder_of(phase: u32) -> vec2<u32> { return vec2<u32>(phase / params.stride.y, phase % params.stride.y); }

fn phase_of(m: u32) -> u32 { return m / params.phase_rows; }

fn steps_of(phase: u32) -> u32 {
  let taps = taps_of(remainder_of(phase));
  return (taps.x * taps.y * ((params.row_words + 3u) / 4u) + SPLIT * STEP - 1u) / (SPLIT * STEP);
}

// (n, y, x) of row m in the result; it may lie outside.
fn position_of(m: u32) -> vec3<u32> {
  let first = (remainder_of(phase_of(m)) + params.stride.xy - params.padding.xy % params.stride.xy) % params.stride.xy;
  let r = m % params.phase_rows / params.phase_grid.y;
  let pixel = vec2<u32>(r % params.phase_grid.x, m % params.phase_rows % params.phase_grid.y);
  return vec3<u32>(r / params.phase_grid.x, pixel * params.stride.xy + first);
}

fn pixel_of(m: u32) -> u32 {
  let p = position_of(m);
  if (any(p >= params.sums.xzw)) { return 0xffffffffu; }
  return (p.x * params.sums.z + p.y) * params.sums.w + p.z;
}

fn row_of(m: u32) -> Row {
  let p = position_of(m);
  let pixel = first_pixel(p.yz, remainder_of(phase_of(m)));
  return Row(p.x * params.x_dims.z, pixel.x, pixel.y);
}

fn k_offset_of(k: u32) -> KOffset {
  let vectors = (params.row_words + 3u) / 4u;
  let across = max(taps_of(remainder_of(k / params.phase_vectors)).y, 1u);
  let tap = k % params.phase_vectors / vectors;
  return KOffset(tap / across * params.reach.x, tap % across * params.reach.y, k % params.phase_vectors % vectors);
}

fn k_offset_from(found: KOffset, k: u32) -> KOffset { return k_offset_of(k); }
fn k_offset_after(k_offset: KOffset) -> KOffset { return k_offset; }

fn load_x(row: Row, k_offset: KOffset) -> RowVector {
  let y = row.y - k_offset.y;
  let column = row.x - k_offset.x;
  let outside = y >= params.x_dims.z || column >= params.x_dims.w;
  if (BRANCHES && outside) { return zero_vector(); }
  let value = x_vector(((row.image + y) * params.x_dims.w + column) * params.row_words, k_offset.vector);
  return zeros_where(value, !BRANCHES && outside);
}
