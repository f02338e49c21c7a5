// A depthwise convolution of 3x3 whose image a 1x1 convolution makes, which is not stored: an inverted residual's first
// two convolutions.
// A workgroup makes ROWS x COLUMNS outputs of 16 channels. Its threads first make the part of the image that these
// read, four neighbouring pixels of four channels each, and round it to workgroup memory. There a word has one channel
// of four pixels. So a dot product takes three taps of a row at once.
// Each thread has one of the four channel quads in both parts, and reads the quad's numbers before the first.
// Open: x_vector: vectors_whole, vectors_of_words. STRIDE, COLUMNS: of the depthwise convolution
// Uses quad, magic_rounding, dot_products.

const THREADS = 256u;
const ROWS = 7u;
const QUADS = 4u;
const TEAMS = THREADS / QUADS;
// Outputs of a thread, and how often there are so many in a row.
const OUTPUTS = 4u / STRIDE;
const STRIPS = (COLUMNS + OUTPUTS - 1u) / OUTPUTS;
const LINES = (ROWS - 1u) * STRIDE + 3u;
// Words of a line of the image, and their distances in workgroup memory: banks of neighbouring threads differ.
const LINE_WORDS = ((COLUMNS - 1u) * STRIDE + 6u) / 4u;
const WORD = 4u * QUADS + 4u;
const LINE = LINE_WORDS * WORD;

// With a word more, which outputs past COLUMNS read.
var<workgroup> image: array<u32, (LINES * LINE_WORDS + 1u) * WORD>;

@compute @workgroup_size(THREADS)
fn main(@builtin(local_invocation_index) local: u32,
        @builtin(workgroup_id) group: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>) {
  let slices = (params.quads + QUADS - 1u) / QUADS;
  let across = (params.sums.w + COLUMNS - 1u) / COLUMNS;
  let down = (params.sums.z + ROWS - 1u) / ROWS;
  let index = group.y * groups.x + group.x;
  let tile = index / slices;
  let n = tile / (across * down);
  if (n >= params.sums.x) { return; }
  let x0 = tile % across * COLUMNS;
  let y0 = tile / across % down * ROWS;
  let q = local % QUADS;
  let quad = index % slices * QUADS + q;
  let channel = channel_quad(quad);
  let start = start_acc(quad);
  var taps: array<vec4<u32>, 3>;
  for (var ky = 0u; ky < 3u; ky++) { taps[ky] = weight[quad * 3u + ky]; }

  // Unsigned: a row or column before the image wraps to a huge number.
  expand(n, y0 * STRIDE - params.padding.x, x0 * STRIDE - params.padding.y, quad, local);
  workgroupBarrier();

  for (var i = local / QUADS; i < ROWS * STRIPS; i += TEAMS) {
    let row = i / STRIPS;
    let strip = i % STRIPS;
    var acc: array<vec4<i32>, OUTPUTS>;
    for (var j = 0u; j < OUTPUTS; j++) { acc[j] = start; }
    for (var ky = 0u; ky < 3u; ky++) {
      let at = (row * STRIDE + ky) * LINE + strip * WORD + q;
      let first = image_words(at);
      let between = (first >> vec4<u32>(16u)) | (image_words(at + WORD) << vec4<u32>(16u));
      if (STRIDE == 1u) {
        let later = taps[ky] << vec4<u32>(8u);
        acc[0] += dot_each(first, taps[ky]);
        acc[1] += dot_each(first, later);
        acc[OUTPUTS - 2u] += dot_each(between, taps[ky]);
        acc[OUTPUTS - 1u] += dot_each(between, later);
      } else {
        acc[0] += dot_each(first, taps[ky]);
        acc[1] += dot_each(between, taps[ky]);
      }
    }
    for (var j = 0u; j < OUTPUTS; j++) {
      let column = strip * OUTPUTS + j;
      if (quad < params.quads && y0 + row < params.sums.z && column < COLUMNS && x0 + column < params.sums.w) {
        store_quad(acc[j], channel, (n * params.sums.z + y0 + row) * params.sums.w + x0 + column, quad);
      }
    }
  }
}

// The words of four channels at a place in a line.
fn image_words(at: u32) -> vec4<u32> {
  return vec4<u32>(image[at], image[at + QUADS], image[at + 2u * QUADS], image[at + 3u * QUADS]);
}

fn dot_each(words: vec4<u32>, taps: vec4<u32>) -> vec4<i32> {
  return vec4<i32>(dot4(words.x, taps.x), dot4(words.y, taps.y), dot4(words.z, taps.z), dot4(words.w, taps.w));
}

// Makes the image from row `top` and column `left` on.
fn expand(n: u32, top: u32, left: u32, quad: u32, local: u32) {
  let numbers_at = quad * 6u;
  let vectors = (params.row_words + 3u) / 4u;
  let weights_at = quad / QUADS * vectors * 4u * QUADS + quad % QUADS;
  let outside = splat(params.image_zero);
  for (var i = local / QUADS; i < LINES * LINE_WORDS; i += TEAMS) {
    let y = top + i / LINE_WORDS;
    let columns = vec4<u32>(left + i % LINE_WORDS * 4u) + vec4<u32>(0u, 1u, 2u, 3u);
    var words = vec4<u32>(outside);
    if (y < params.x_dims.z) {
      let within = columns < vec4<u32>(params.x_dims.w);
      let pixels = (n * params.x_dims.z + y) * params.x_dims.w + min(columns, vec4<u32>(params.x_dims.w - 1u));
      var acc: array<vec4<i32>, 4>;
      for (var p = 0u; p < 4u; p++) { acc[p] = inner_numbers[numbers_at]; }
      for (var k = 0u; k < vectors; k++) {
        let at = weights_at + k * 4u * QUADS;
        let b0 = inner_weight[at];
        let b1 = inner_weight[at + QUADS];
        let b2 = inner_weight[at + 2u * QUADS];
        let b3 = inner_weight[at + 3u * QUADS];
        for (var p = 0u; p < 4u; p++) {
          acc[p] = dot_quad(acc[p], x_vector(pixels[p] * params.row_words, k), b0, b1, b2, b3);
        }
      }
      let a = inner_value(acc[0], numbers_at);
      let b = inner_value(acc[1], numbers_at);
      let c = inner_value(acc[2], numbers_at);
      let d = inner_value(acc[3], numbers_at);
      let bytes = select(vec4<u32>(0u), vec4<u32>(255u) << vec4<u32>(0u, 8u, 16u, 24u), within);
      let mask = bytes.x | bytes.y | bytes.z | bytes.w;
      let made = vec4<u32>(
        inner_word(a.x, b.x, c.x, d.x), inner_word(a.y, b.y, c.y, d.y),
        inner_word(a.z, b.z, c.z, d.z), inner_word(a.w, b.w, c.w, d.w));
      words = (made & vec4<u32>(mask)) | vec4<u32>(outside & ~mask);
    }
    let at = i * WORD + quad % QUADS;
    for (var j = 0u; j < 4u; j++) { image[at + j * QUADS] = words[j]; }
  }
}

fn inner_word(a: i32, b: i32, c: i32, d: i32) -> u32 { return packed_whole(vec4<i32>(a, b, c, d), params.image_zero); }

// magic_rounding.py says how it rounds. Numbers of a quad: start, multiplier, and those of magic_rounding.pack.
fn inner_value(acc: vec4<i32>, at: u32) -> vec4<i32> {
  let low = bitcast<vec4<f32>>(inner_numbers[at + 3u]);
  let high = bitcast<vec4<f32>>(inner_numbers[at + 4u]);
  let product = vec4<f32>(acc) * bitcast<vec4<f32>>(inner_numbers[at + 1u]);
  let t = clamp(product, low, high) + bitcast<vec4<f32>>(inner_numbers[at + 5u]);
  return whole_quad(bitcast<vec4<f32>>(bitcast<vec4<i32>>(t) + inner_numbers[at + 2u]));
}
