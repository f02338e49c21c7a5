// Rows of x for a transposed convolution, one block of params.phase_rows rows for each phase: the pixels of the result
// whose place, padding counted, leaves one remainder by the stride. k runs over (tap of the phase, channels) in whole
// vectors; the t-th tap of a phase reads t * dilation pixels before its first. Linked: x_vector (gemm_wide, gemm_narrow).

struct Row { image: u32, y: u32, x: u32 }
struct Place { y: u32, x: u32, vector: u32 }

fn phase_of(m: u32) -> u32 { return m / params.phase_rows; }

fn remainder_of(phase: u32) -> vec2<u32> { return vec2<u32>(phase / params.stride.y, phase % params.stride.y); }

// The first tap of a phase along y and x; the others follow at distances of the stride.
fn first_tap(phase: u32) -> vec2<u32> { return remainder_of(phase) * params.inverse.xy % params.stride.xy; }

fn taps_of(phase: u32) -> vec2<u32> {
  return (params.kernel.xy + params.stride.xy - 1u - first_tap(phase)) / params.stride.xy;
}

fn steps_of(phase: u32) -> u32 {
  let taps = taps_of(phase);
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
  if (any(p >= params.y_dims.xzw)) { return 0xffffffffu; }
  return (p.x * params.y_dims.z + p.y) * params.y_dims.w + p.z;
}

fn row_of(m: u32) -> Row {
  let p = position_of(m);
  // A multiple of the stride, perhaps below 0: as unsigned that is a huge row, outside the image.
  let reached = vec2<i32>(p.yz + params.padding.xy - first_tap(phase_of(m)) * params.dilation.xy) / vec2<i32>(params.stride.xy);
  return Row(p.x * params.x_dims.z, u32(reached.x), u32(reached.y));
}

fn place_of(k: u32) -> Place {
  let vectors = (params.row_words + 3u) / 4u;
  let across = max(taps_of(k / params.phase_vectors).y, 1u);
  let tap = k % params.phase_vectors / vectors;
  return Place(tap / across * params.dilation.x, tap % across * params.dilation.y, k % params.phase_vectors % vectors);
}

fn load_x(row: Row, place: Place) -> vec4<u32> {
  let y = row.y - place.y;
  let column = row.x - place.x;
  if (y >= params.x_dims.z || column >= params.x_dims.w) { return params.x_zeros; }
  return x_vector(((row.image + y) * params.x_dims.w + column) * params.row_words, place.vector);
}
