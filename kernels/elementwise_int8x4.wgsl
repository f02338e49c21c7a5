// apply(a, b) on whole words of equal shapes: operands and result share the packed dimension, so lanes stay in place.
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
  let word = id.y * groups.x * 64u + id.x;
  if (word >= params.words) { return; }
  let p = y_coord(word);
  if (any(p >= params.y_dims)) {
    y[word] = 0u;
    return;
  }
  let left = unpack4xI8(a_word(p));
  let right = unpack4xI8(b_word(p));
  y[word] = pack4xI8(vec4<i32>(
    apply(left.x, right.x), apply(left.y, right.y), apply(left.z, right.z), apply(left.w, right.w)));
}
