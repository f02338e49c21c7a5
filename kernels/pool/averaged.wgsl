// Sums of `count` elements with their zero points, as words of the result.
fn averaged(sum: Lanes, count: u32, multiplier: f32) -> Words {
  let zeros = Ints(i32(count) * params.x_zero);
  return average_lane(sum.a - zeros, multiplier) | (average_lane(sum.b - zeros, multiplier) << Words(8u)) |
         (average_lane(sum.c - zeros, multiplier) << Words(16u)) | (average_lane(sum.d - zeros, multiplier) << Words(24u));
}

fn average_lane(sum: Ints, multiplier: f32) -> Words {
  let steps = Ints(round(clamp(Floats(sum) * multiplier, Floats(-1024.0), Floats(1024.0))));
  return bitcast<Words>(clamp(steps + params.zero, Ints(params.lo), Ints(params.hi))) & Words(0xffu);
}
