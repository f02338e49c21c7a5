// apply(a, b) on elements. Dimensions of extent 1 are broadcast.
fn compute(p: vec4<u32>) -> i32 {
  return apply(a_at(min(p, params.a_dims - 1u)), b_at(min(p, params.b_dims - 1u)));
}

// apply(a, b) on the lanes of two words.
fn combine(a: a_Word, b: b_Word) -> Word {
  let left = a_lanes(a);
  let right = b_lanes(b);
  return packed(vec4<i32>(
    apply(left.x, right.x), apply(left.y, right.y), apply(left.z, right.z), apply(left.w, right.w)));
}

// params.offset is minus the zero points times their multipliers. Partial sums may wrap modulo 2^32; the complete sum
// fits.
fn q8ta_add(a: i32, b: i32) -> i32 {
  let v = a * params.a_multiplier + (b * params.b_multiplier + params.offset);
  return clamp(rte(v, params.shift) + params.zero, params.lo, params.hi);
}

// Operands are int8 or int16.
fn q16ta_add(a: i32, b: i32) -> i32 {
  let v = scaled_term(a - params.a_zero, params.a_multiplier) + scaled_term(b - params.b_zero, params.b_multiplier);
  return clamp(rte(v, params.shift) + params.zero, params.lo, params.hi);
}

fn q8ta_mul(a: i32, b: i32) -> i32 {
  let product = (a - params.a_zero) * (b - params.b_zero);
  return clamp(round_within(f32(product) * params.multiplier, STEPS_LIMIT) + params.zero, params.lo, params.hi);
}
