// Four teams of LANES threads compute the four elements of one word of the result (kernels/lib/share.py). Padding lanes
// get the values of elements inside the tensor.
var<workgroup> elements: array<i32, 4>;

@compute @workgroup_size(THREADS)
fn main(@builtin(local_invocation_index) thread: u32,
        @builtin(workgroup_id) group: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>) {
  let word = group.y * groups.x + group.x;
  let lane = thread % LANES;
  let p = min(y_coord(min(word, params.words - 1u)) + thread / LANES * Y_LANE, params.y_dims - 1u);
  let merged = reduced(thread, partial_result(p, first_of(lane)));
  if (lane == 0u) { elements[thread / LANES] = finish(p, merged); }
  workgroupBarrier();
  if (thread == 0u && word < params.words) {
    y[word] = packed(vec4<i32>(elements[0], elements[1], elements[2], elements[3]));
  }
}
