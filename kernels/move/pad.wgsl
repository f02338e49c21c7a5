// Constant padding of every dimension, the last one first. Indices are unsigned: one before the input wraps to a huge
// number. `before` is modulo 2^32, too, so that negative padding crops.

fn compute(p: vec4<u32>) -> Element {
  var rest = index_WIDTH_PACKED(p, params.y_dims);
  var at = 0u;
  var stride = 1u;
  var inside = true;
  let digits = loop_end(params.digits, rest);
  for (var i = 0u; i < 8u; i++) {
    if (i >= digits) { break; }
    let low = i < 4u;
    let size = select(params.size_high[i % 4u], params.size_low[i % 4u], low);
    let extent = select(params.extent_high[i % 4u], params.extent_low[i % 4u], low);
    let index = rest % size - select(params.before_high[i % 4u], params.before_low[i % 4u], low);
    inside = inside && index < extent;
    at += index * stride;
    stride *= extent;
    rest /= size;
  }
  if (!inside) { return params.fill; }
  return x_at(coord_WIDTH_PACKED(at, params.x_dims));
}
