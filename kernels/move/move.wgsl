fn compute(p: vec4<u32>) -> Element { return x_at(source_of(p)); }

// Every strided move: the linear index of a result element, written in mixed radix (fastest digit first), gives the
// linear index of the element it copies: offset + the sum of digit * stride, modulo 2^32, so that strides may be
// negative.

fn source_of(p: vec4<u32>) -> vec4<u32> {
  return coord_WIDTH_PACKED(source_index(index_WIDTH_PACKED(p, params.y_dims)), params.x_dims);
}

fn source_index(at: u32) -> u32 {
  var rest = at;
  var found = params.offset;
  let digits = loop_end(params.digits, rest);
  for (var i = 0u; i < 8u; i++) {
    if (i >= digits) { break; }
    let low = i < 4u;
    let size = select(params.size_high[i % 4u], params.size_low[i % 4u], low);
    let next = rest / size;
    found += (rest - next * size) * select(params.stride_high[i % 4u], params.stride_low[i % 4u], low);
    rest = next;
  }
  return found;
}
