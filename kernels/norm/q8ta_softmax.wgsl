// Softmax of int8, as kernels/norm/softmax.py defines it. powers[d] is the power of the distance d from a row's largest
// element, and powers[256 + d] the same in steps of the result. All arithmetic is in u32, so that sums may have any
// order. Linked: mask or no_mask.

fn power(distance: u32) -> u32 { return u32(powers[distance]); }

fn quotient(distance: u32, sum: u32, unmasked: bool) -> i32 {
  let even = params.even == 1u && sum == 0u;
  let total = select(max(sum, 1u), params.length * power(0u), even);
  let steps = select(0, i32((u32(powers[256u + select(distance, 0u, even)]) + total / 2u) / total), unmasked || even);
  return clamp(steps + params.zero, params.lo, params.hi);
}

// One element, where a row's elements are `inner` elements apart in memory.
fn element_coord(at: u32) -> vec4<u32> { return coord_WIDTH_PACKED(at, params.y_dims); }

fn compute(p: vec4<u32>) -> i32 {
  let at = index_WIDTH_PACKED(p, params.y_dims);
  let base = at - at / params.inner % params.length * params.inner;
  let length = loop_end(params.length, at);
  var largest = LEAST;
  for (var k = 0u; k < length; k++) {
    let q = element_coord(base + k * params.inner);
    if (is_unmasked(q)) { largest = max(largest, x_at(q)); }
  }
  var sum = Total();
  for (var k = 0u; k < length; k++) {
    let q = element_coord(base + k * params.inner);
    if (is_unmasked(q)) { sum = with_power(sum, u32(largest - x_at(q))); }
  }
  return quotient(u32(max(largest - x_at(p), 0)), sum, is_unmasked(p));
}

const LEAST = -128;
alias Total = u32;

fn with_power(sum: Total, distance: u32) -> Total { return sum + power(distance); }
