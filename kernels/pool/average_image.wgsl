// The integer average of whole images in 4C. A workgroup averages 2^params.run_bits adjacent Words of the channels.
// Several threads share the pixels of a Word: each adds every n-th pixel, and then their sums are added. The result has
// the Words of an image's channels one after another.
// Uses average_channels.
const THREADS = 128u;
const UNROLLED = 4u;
var<workgroup> partial: array<Lanes, THREADS>;

@compute @workgroup_size(128)
fn main(@builtin(local_invocation_index) thread: u32,
        @builtin(workgroup_id) group_id: vec3<u32>,
        @builtin(num_workgroups) group_count: vec3<u32>) {
  let run = 1u << params.run_bits;
  let tiles = (params.groups + run - 1u) / run;
  let tile = group_id.y * group_count.x + group_id.x;
  let n = tile / tiles;
  if (n >= params.images) { return; }
  let group = (tile - n * tiles) * run + (thread & (run - 1u));
  let slices = THREADS >> params.run_bits;
  let first = n * params.pixels * params.groups + min(group, params.groups - 1u);
  var sum: Lanes;
  var pixel = thread >> params.run_bits;
  while (pixel + (UNROLLED - 1u) * slices < params.pixels) {
    var words: array<Words, UNROLLED>;
    for (var i = 0u; i < UNROLLED; i++) { words[i] = x[first + (pixel + i * slices) * params.groups]; }
    for (var i = 0u; i < UNROLLED; i++) { sum = added(sum, words[i]); }
    pixel += UNROLLED * slices;
  }
  for (; pixel < params.pixels; pixel += slices) { sum = added(sum, x[first + pixel * params.groups]); }
  partial[thread] = sum;
  workgroupBarrier();
  for (var half = THREADS / 2u; half >= run; half /= 2u) {
    if (thread < half) { partial[thread] = lanes_sum(partial[thread], partial[thread + half]); }
    workgroupBarrier();
  }
  if (thread < run && group < params.groups) {
    y[n * params.groups + group] = averaged(partial[thread], params.pixels, params.image_multiplier);
  }
}
