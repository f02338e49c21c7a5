// The number of elements along params.axis that come before this one: larger ones (with LARGEST = 0 smaller ones), and
// equal ones with a lower index. NaN is the largest.
alias Partial = u32;
fn merge(a: Partial, b: Partial) -> Partial { return a + b; }

fn larger(a: Ordered, b: Ordered) -> bool { return !is_nan(f32(b)) && (is_nan(f32(a)) || a > b); }

fn partial_result(p: vec4<u32>, first: vec4<u32>) -> Partial {
  let own = x_at(p);
  var at = p;
  var count = 0u;
  for (var i = first.w; i < params.x_dims[params.axis]; i += STEPS.w) {
    at[params.axis] = i;
    let other = x_at(at);
    let above = larger(other, own);
    let below = larger(own, other);
    if (select(below, above, LARGEST == 1u) || (!above && !below && i < p[params.axis])) { count += 1u; }
  }
  return count;
}

fn finish(p: vec4<u32>, count: Partial) -> i32 { return i32(count); }
