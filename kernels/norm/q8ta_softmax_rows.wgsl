// Softmax of rows of int8 words, each by a team of threads. Elements count from 0, lanes past a row are 0: the least.

// (largest, sum)
alias Partial = vec2<u32>;
fn merge(a: Partial, b: Partial) -> Partial { return Partial(max(a.x, b.x), a.y + b.y); }

@compute @workgroup_size(THREADS)
fn main(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) thread: u32,
) {
  let place = first_row(group, groups) + thread / LANES;
  let lane = thread % LANES;
  let base = min(place, params.rows - 1u) * params.items;

  var most = vec4<u32>(0u);
  for (var k = lane; k < params.items; k += LANES) {
    most = max(most, unpack4xU8((x[base + k] ^ 0x80808080u) & bits_of(k)));
  }
  let largest = reduced(thread, Partial(max(max(most.x, most.y), max(most.z, most.w)), 0u)).x;

  var part = 0u;
  for (var k = lane; k < params.items; k += LANES) {
    let d = largest - unpack4xU8((x[base + k] ^ 0x80808080u) & bits_of(k));
    let within = vec4<u32>(lanes_of(k)) > vec4<u32>(0u, 1u, 2u, 3u);
    let p = select(vec4<u32>(0u), vec4<u32>(power(d.x), power(d.y), power(d.z), power(d.w)), within);
    part += p.x + p.y + p.z + p.w;
  }
  let sum = reduced(thread, Partial(0u, part)).y;
  if (place >= params.rows) { return; }
  for (var k = lane; k < params.items; k += LANES) {
    let d = largest - unpack4xU8((x[base + k] ^ 0x80808080u) & bits_of(k));
    y[base + k] = pack4xI8(vec4<i32>(quotient(d.x, sum), quotient(d.y, sum), quotient(d.z, sum), quotient(d.w, sum)));
  }
}

