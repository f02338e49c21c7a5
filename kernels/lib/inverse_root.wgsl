// 64-bit integers as two words, and the inverse square root of one (kernels/norm/integers.py defines it).
alias Wide = vec2<u32>; // low, high

fn wide_sum(a: Wide, b: Wide) -> Wide {
  let low = a.x + b.x;
  return Wide(low, a.y + b.y + select(0u, 1u, low < a.x));
}

fn wide_difference(a: Wide, b: Wide) -> Wide { return Wide(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x)); }

fn wide_product(a: u32, b: u32) -> Wide {
  let middle = (a >> 16u) * (b & 0xffffu) + (((a & 0xffffu) * (b & 0xffffu)) >> 16u);
  let other = (a & 0xffffu) * (b >> 16u) + (middle & 0xffffu);
  return Wide(a * b, (a >> 16u) * (b >> 16u) + (middle >> 16u) + (other >> 16u));
}

// a * 2^k and a / 2^k, rounded down, for 0 <= k < 64.
fn wide_left(a: Wide, k: u32) -> Wide {
  if (k >= 32u) { return Wide(0u, a.x << (k - 32u)); }
  if (k == 0u) { return a; }
  return Wide(a.x << k, (a.y << k) | (a.x >> (32u - k)));
}

fn wide_right(a: Wide, k: u32) -> Wide {
  if (k >= 32u) { return Wide(a.y >> (k - 32u), 0u); }
  if (k == 0u) { return a; }
  return Wide((a.x >> k) | (a.y << (32u - k)), a.y >> k);
}

// The high words of the 64-bit products.
fn high_words(a: vec4<u32>, b: u32) -> vec4<u32> {
  let low = vec4<u32>(0xffffu);
  let sixteen = vec4<u32>(16u);
  let middle = (a >> sixteen) * (b & 0xffffu) + (((a & low) * (b & 0xffffu)) >> sixteen);
  let other = (a & low) * (b >> 16u) + (middle & low);
  return (a >> sixteen) * (b >> 16u) + (middle >> sixteen) + (other >> sixteen);
}

// floor(sqrt(v)) for v >= 2^30. The root in float32 is less than one away from it.
fn whole_root(v: u32) -> u32 {
  let near = min(u32(sqrt(f32(v))), 0xffffu);
  let low = near - select(0u, 1u, near * near > v);
  return low + select(0u, 1u, v - low * low > 2u * low);
}

// 1 / sqrt(v) as factor / 2^shift, where factor has 31 bits.
struct InverseRoot { factor: u32, shift: u32 }

fn inverse_root(v: Wide) -> InverseRoot {
  let positive = select(v, Wide(1u, 0u), v.x == 0u && v.y == 0u);
  let bits = select(firstLeadingBit(positive.x), 32u + firstLeadingBit(positive.y), positive.y > 0u);
  // An even shift leaves 31 or 32 bits: v = m * 4^t.
  let t = i32(bits / 2u) - 15;
  var m = positive.x;
  if (t > 0) { m = wide_right(positive, u32(2 * t)).x; }
  if (t < 0) { m = positive.x << u32(-2 * t); }
  // One step of Newton's method from an estimate of 16 bits.
  let start = min(0x80000000u / whole_root(m), 0xffffu);
  let gap = 0x40000000 - i32(wide_product(m, start * start).y);
  return InverseRoot(start * 0x8000u + u32((i32(start) * (gap >> 2u)) >> 14u), u32(46 + t));
}
