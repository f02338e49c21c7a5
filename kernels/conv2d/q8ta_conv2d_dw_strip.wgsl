// Depthwise convolution of 4C tensors: a thread makes COLUMNS x ROWS outputs of one channel quad, so that input words
// and weights are read and unpacked once for all of them. PIXELS words of a row make a value, and a value takes part in
// a sum by a tap: by multiplication (dw_unpack), or by whole dot products (dw_turned). Kernel size and stride are
// constants, so that the loops unroll and everything stays in registers.
// Open: Value, Tap, value_of, tap_at, add_tap: dw_unpack, dw_turned
//   PIXELS: words of a value. Column i meets its TAPS values from i * VALUE_STEP on, and its taps from i * TAP_STEP on.
//   ROW_TAPS: taps of a row of the window
// Uses quad.

const SPAN_X = (COLUMNS - 1u) * STRIDE_X + KERNEL_X;
const SPAN_Y = (ROWS - 1u) * STRIDE_Y + KERNEL_Y;
const VALUES = (SPAN_X + PIXELS - 1u) / PIXELS;
const ROW_WORDS = VALUES * PIXELS;
// LOADED rows are loaded before they are multiplied: all of them, so that the loads overlap, or one, for fewer registers.
const PARTS = SPAN_Y / LOADED;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
  let index = id.y * groups.x * 64u + id.x;
  let across = (params.sums.w + COLUMNS - 1u) / COLUMNS;
  let down = (params.sums.z + ROWS - 1u) / ROWS;
  let quad = index % params.quads;
  let strip = index / params.quads;
  let band = strip / across;
  let n = band / down;
  if (n >= params.sums.x) { return; }
  let y0 = band % down * ROWS;
  let x0 = strip % across * COLUMNS;
  // Unsigned: a row or column before the image wraps to a huge number.
  let top = y0 * STRIDE_Y - params.padding.x;
  let left = x0 * STRIDE_X - params.padding.y;
  // Most strips lie within the columns of the image, and need not ask for each word: faster on GPUs, slower on CPUs.
  let within = EDGES_ONCE == 1u && left < params.x_dims.w && left + SPAN_X <= params.x_dims.w;

  var acc: array<vec4<i32>, ROWS * COLUMNS>;
  let start = start_acc(quad);
  for (var i = 0u; i < ROWS * COLUMNS; i++) { acc[i] = start; }
  for (var part = 0u; part < PARTS; part++) {
    var words: array<u32, LOADED * ROW_WORDS>;
    for (var l = 0u; l < LOADED; l++) {
      let y = top + part * LOADED + l;
      let inside = y < params.x_dims.z;
      let first = ((n * params.x_dims.z + y) * params.x_dims.w + left) * params.quads + quad;
      for (var i = 0u; i < ROW_WORDS; i++) { words[l * ROW_WORDS + i] = zero_word(); }
      if (inside && within) {
        for (var i = 0u; i < SPAN_X; i++) { words[l * ROW_WORDS + i] = x[first + i * params.quads]; }
      } else if (inside) {
        for (var i = 0u; i < SPAN_X; i++) {
          if (left + i < params.x_dims.w) { words[l * ROW_WORDS + i] = x[first + i * params.quads]; }
        }
      }
    }
    for (var l = 0u; l < LOADED; l++) {
      var values: array<Value, VALUES>;
      for (var i = 0u; i < VALUES; i++) {
        let at = l * ROW_WORDS + i * PIXELS;
        let last = at + PIXELS - 1u;
        values[i] = value_of(words[at], words[min(at + 1u, last)], words[min(at + 2u, last)], words[last]);
      }
      for (var r = 0u; r < ROWS; r++) {
        let ky = part * LOADED + l - r * STRIDE_Y;
        if (ky < KERNEL_Y) {
          for (var j = 0u; j < TAPS; j++) {
            let tap_j = (quad * KERNEL_Y + ky) * ROW_TAPS + j;
            var tap = tap_at(tap_j);
            for (var i = 0u; i < COLUMNS; i++) {
              let v = i * VALUE_STEP + j;
              if (v * PIXELS < i * STRIDE_X + KERNEL_X && (v + 1u) * PIXELS > i * STRIDE_X) {
                if (TAP_STEP > 0u && i > 0u) { tap = tap_at(tap_j + i * TAP_STEP); }
                acc[r * COLUMNS + i] = add_tap(acc[r * COLUMNS + i], values[v], tap);
              }
            }
          }
        }
      }
    }
  }
  let channel = channel_quad(quad);
  for (var r = 0u; r < ROWS; r++) {
    for (var i = 0u; i < COLUMNS; i++) {
      if (y0 + r < params.sums.z && x0 + i < params.sums.w) {
        store_quad(acc[r * COLUMNS + i], channel, (n * params.sums.z + y0 + r) * params.sums.w + x0 + i, quad);
      }
    }
  }
}
