// A main for operators on whole words. An item is a word, or a vector of ITEM_WORDS words. load(at) reads the operands
// of an item, result(loaded) computes it. A thread makes ITEMS items, 64 apart, so that neighbouring threads read
// neighbouring items. It loads all before it stores the first, so that several loads are under way.

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
