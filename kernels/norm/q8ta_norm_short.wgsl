// For rows whose sums of differences fit int32.
alias Sum = i32;
fn as_sum(v: i32) -> Sum { return v; }
fn sums(a: Sum, b: Sum) -> Sum { return a + b; }
fn mean_of(sum: Sum) -> i32 { return sum; }

// C sum x'^2 - (sum x')^2.
fn variance_of(squares: Wide, sum: Sum) -> Wide {
  let first = wide_product(params.length, squares.x) + Wide(0u, params.length * squares.y);
  return wide_difference(first, wide_product(u32(abs(sum)), u32(abs(sum))));
}

fn distances(v: vec4<i32>, mean: i32) -> vec4<i32> { return i32(params.length) * v - mean; }
