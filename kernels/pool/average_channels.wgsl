// The integer average of the elements in window(p), word by word in 4C: sums of (x - x_zero) times
// multiplier_of(window).
fn words_of(p: vec4<u32>) -> Words {
  let w = window(vec4<u32>(p.x, 0u, p.zw));
  var sum: Lanes;
  for (var h = w.start.z; h < w.end.z; h++) {
    for (var i = w.start.w; i < w.end.w; i++) { sum = added(sum, x_group(p.x, h, i, p.y)); }
  }
  return averaged(sum, (w.end.z - w.start.z) * (w.end.w - w.start.w), multiplier_of(w));
}

// Words of the result from sums of `count` elements, which include their zero points.
fn averaged(sum: Lanes, count: u32, multiplier: f32) -> Words {
  let zeros = Ints(i32(count) * params.x_zero);
  let byte = Words(0xffu);
  return (average_lane(sum.a - zeros, multiplier) & byte) |
         ((average_lane(sum.b - zeros, multiplier) & byte) << Words(8u)) |
         ((average_lane(sum.c - zeros, multiplier) & byte) << Words(16u)) |
         (average_lane(sum.d - zeros, multiplier) << Words(24u));
}

// The same of int16.
fn averaged_int16(sum: LanesInt16, count: u32, multiplier: f32) -> Words {
  let zeros = Ints(i32(count) * params.x_zero);
  return (average_lane(sum.a - zeros, multiplier) & Words(0xffffu)) | (average_lane(sum.b - zeros, multiplier) << Words(16u));
}

fn average_lane(sum: Ints, multiplier: f32) -> Words {
  let steps = Ints(round(clamp(Floats(sum) * multiplier, Floats(-STEPS_LIMIT), Floats(STEPS_LIMIT))));
  return bitcast<Words>(clamp(steps + params.zero, Ints(params.lo), Ints(params.hi)));
}
