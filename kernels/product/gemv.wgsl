// Few rows of x with int8 weights: a workgroup makes one channel quad of up to ROWS rows, its 64 threads share k.
// Weights come in order (channel quad, k, channel in quad), so that a thread reads 64 bytes at once.
// Linked: ROWS, x_vector (gemm_rows), dot_quad, store_quad (quad).

var<workgroup> partial: array<vec4<i32>, 64u * ROWS>;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) t: u32,
        @builtin(workgroup_id) group: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>) {
  let quad = group.y * groups.x + group.x;
  if (quad >= params.quads) { return; }
  var acc: array<vec4<i32>, ROWS>;
  for (var k = t; k < params.vectors; k += 64u) {
    let at = (quad * params.vectors + k) * 4u;
    let b0 = weight[at];
    let b1 = weight[at + 1u];
    let b2 = weight[at + 2u];
    let b3 = weight[at + 3u];
    for (var i = 0u; i < ROWS; i++) {
      acc[i] = dot_quad(acc[i], x_vector(min(i, params.rows - 1u) * params.row_words, k), b0, b1, b2, b3);
    }
  }
  for (var i = 0u; i < ROWS; i++) { partial[i * 64u + t] = acc[i]; }
  for (var half = 32u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (t < half) {
      for (var i = 0u; i < ROWS; i++) { partial[i * 64u + t] += partial[i * 64u + t + half]; }
    }
  }
  workgroupBarrier();
  if (t < params.rows) { store_quad(partial[t * 64u] + start_quad(quad), channel_quad(quad), t, quad); }
}
