// Operators on whole words. load(at) reads what one item of the result is made of, result(loaded) makes it; an item is a
// word, or a vector of ITEM_WORDS. A thread makes ITEMS of them, a workgroup apart, so that neighbours read neighbours;
// all are loaded before the first is stored, so that several loads are under way.

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) local: u32,
        @builtin(workgroup_id) group: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>) {
  let first = (group.y * groups.x + group.x) * 64u * ITEMS + local;
  var loaded: array<Loaded, ITEMS>;
  for (var i = 0u; i < ITEMS; i++) { loaded[i] = load(first + i * 64u); }
  for (var i = 0u; i < ITEMS; i++) {
    let at = first + i * 64u;
    if (at * ITEM_WORDS < params.words) { y[at] = result(loaded[i]); }
  }
}
