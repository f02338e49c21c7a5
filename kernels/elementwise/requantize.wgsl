fn requantized_lane(v: i32) -> i32 {
  return clamp(scaled_term(v - params.x_zero, params.multiplier) + params.zero, params.lo, params.hi);
}

fn combine(x: x_Word) -> Word {
  let v = x_lanes(x);
  return packed(vec4<i32>(
    requantized_lane(v.x), requantized_lane(v.y), requantized_lane(v.z), requantized_lane(v.w)));
}
