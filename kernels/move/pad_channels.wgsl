// Rows and columns around every image. Unsigned: a place before the input wraps to a huge number.
const ITEMS = 2u;

fn words_of(p: vec4<u32>) -> Words {
  let h = p.z - params.before.x;
  let w = p.w - params.before.y;
  if (h >= params.x_dims.z || w >= params.x_dims.w) { return Words(splat(params.fill)); }
  return x_group(p.x, h, w, p.y);
}
