// For long rows of int16: sums of differences have two words, and differences from the mean lose `dropped` low bits.
alias Sum = Wide;
fn as_sum(v: i32) -> Sum { return Wide(bitcast<u32>(v), bitcast<u32>(v >> 31u)); }
fn sums(a: Sum, b: Sum) -> Sum { return wide_sum(a, b); }
fn mean_of(sum: Sum) -> i32 { return bitcast<i32>((sum.x >> params.dropped) | (sum.y << (32u - params.dropped))); }

// (C sum x'^2 - (sum x')^2) / 4^dropped. The products have three words.
fn variance_of(squares: Wide, sum: Sum) -> Wide {
  let a = wide_product(params.length, squares.x);
  let first = wide_sum(wide_product(params.length, squares.y), Wide(a.y, 0u));
  let size = select(sum, wide_difference(Wide(0u), sum), (sum.y >> 31u) == 1u);
  let b = wide_product(size.x, size.x);
  let second = wide_sum(wide_product(size.x, 2u * size.y), Wide(b.y, size.y * size.y));
  let high = wide_difference(wide_difference(first, second), Wide(select(0u, 1u, a.x < b.x), 0u));
  let right = 2u * params.dropped;
  let left = 32u - right;
  return Wide(((a.x - b.x) >> right) | (high.x << left), (high.x >> right) | (high.y << left));
}

fn distances(v: vec4<i32>, mean: i32) -> vec4<i32> {
  let rest = params.length & ((1u << params.dropped) - 1u);
  return i32(params.length >> params.dropped) * v + ((i32(rest) * v) >> vec4<u32>(params.dropped)) - mean;
}
