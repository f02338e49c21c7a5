// apply(a, b) on whole words of equal shapes.
fn apply_word(word: u32) -> u32 {
  let left = unpack4xI8(a_word_of(word));
  let right = unpack4xI8(b_word_of(word));
  return pack4xI8(vec4<i32>(
    apply(left.x, right.x), apply(left.y, right.y), apply(left.z, right.z), apply(left.w, right.w)));
}
