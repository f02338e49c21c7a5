// apply_word(word) makes one word of the result; operands share its shape and packed axis, so lanes stay in place.
// A thread makes WORDS of them, a workgroup apart, so that neighbours read neighbours and several loads are under way.

const WORDS = 4u;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) local: u32,
        @builtin(workgroup_id) group: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>) {
  let first = (group.y * groups.x + group.x) * 64u * WORDS + local;
  for (var i = 0u; i < WORDS; i++) {
    let word = first + i * 64u;
    if (word < params.words) { y[word] = apply_word(word); }
  }
}
