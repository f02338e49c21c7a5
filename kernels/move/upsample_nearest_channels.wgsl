const ITEMS = 2u;

fn words_of(p: vec4<u32>) -> Words {
  let row = source_of(p.z, params.step_h, params.x_dims.z);
  let column = source_of(p.w, params.step_w, params.x_dims.w);
  return x_group(p.x, row, column, p.y);
}
