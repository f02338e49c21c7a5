// Softmax of int8 by a table of powers (kernels/norm/softmax.py defines it; a file of masks says what takes part):
// powers[d] for the distance d from a row's largest element, powers[256 + d] the same in steps of the result. All is u32,
// and sums have no order.

fn power(distance: u32) -> u32 { return u32(powers[distance]); }

fn quotient(distance: u32, sum: u32, part: bool) -> i32 {
  let even = params.even == 1u && sum == 0u;
  let whole = select(max(sum, 1u), params.length * power(0u), even);
  let steps = select(0, i32((u32(powers[256u + select(distance, 0u, even)]) + whole / 2u) / whole), part || even);
  return clamp(steps + params.zero, params.lo, params.hi);
}

// An element by itself, its row anywhere: elements `inner` apart in order.
fn place_of_element(at: u32) -> vec4<u32> { return coord_WIDTH_PACKED(at, params.y_dims); }

fn compute(p: vec4<u32>) -> i32 {
  let at = index_WIDTH_PACKED(p, params.y_dims);
  let base = at - at / params.inner % params.length * params.inner;
  let length = loop_end(params.length, at);
  var largest = -128;
  for (var k = 0u; k < length; k++) {
    let place = place_of_element(base + k * params.inner);
    if (takes_part(place)) { largest = max(largest, x_at(place)); }
  }
  var sum = 0u;
  for (var k = 0u; k < length; k++) {
    let place = place_of_element(base + k * params.inner);
    if (takes_part(place)) { sum += power(u32(largest - x_at(place))); }
  }
  return quotient(u32(max(largest - x_at(p), 0)), sum, takes_part(p));
}
