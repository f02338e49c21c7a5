// Bilinear interpolation: a result element is computed from two rows and two columns of the input. Positions are
// fixed-point numbers, so that every device uses the same elements and the same weights.

struct Tap { first: u32, second: u32, weight: i32 }

// The two input elements and the weight for index `index` of the result along a dimension. The step is step.x * 2^-18 +
// step.y * 2^-31 elements.
fn tap(index: u32, step: vec2<u32>, start: i32, extent: u32) -> Tap {
  let at = u32(max(i32(index * step.x + ((index * step.y) >> 13u)) + start, 0));
  let first = min(at >> 18u, extent - 1u);
  return Tap(first, min(first + 1u, extent - 1u), i32(at & 0x3ffffu));
}

fn row_tap(p: vec4<u32>) -> Tap { return tap(p.z, params.steps.xy, params.start_h, params.x_dims.z); }
fn column_tap(p: vec4<u32>) -> Tap { return tap(p.w, params.steps.zw, params.start_w, params.x_dims.w); }

fn upsample_bilinear(p: vec4<u32>) -> f32 {
  let h = row_tap(p);
  let w = column_tap(p);
  let across = f32(w.weight) / 262144.0;
  let top = between(x_at(vec4<u32>(p.xy, h.first, w.first)), x_at(vec4<u32>(p.xy, h.first, w.second)), across);
  let bottom = between(x_at(vec4<u32>(p.xy, h.second, w.first)), x_at(vec4<u32>(p.xy, h.second, w.second)), across);
  return between(top, bottom, f32(h.weight) / 262144.0);
}

fn between(a: f32, b: f32, weight: f32) -> f32 { return a * (1.0 - weight) + b * weight; }

fn q8ta_upsample_bilinear(p: vec4<u32>) -> i32 {
  let h = row_tap(p);
  let w = column_tap(p);
  let top_left = x_at(vec4<u32>(p.xy, h.first, w.first));
  let top_right = x_at(vec4<u32>(p.xy, h.first, w.second));
  let left = x_at(vec4<u32>(p.xy, h.second, w.first));
  let right = x_at(vec4<u32>(p.xy, h.second, w.second));
  return mixed(across(top_left, top_right, w.weight), across(left, right, w.weight), h.weight);
}

fn words_of(p: vec4<u32>) -> Words {
  let h = row_tap(p);
  let w = column_tap(p);
  let top_left = raised(x_group(p.x, h.first, w.first, p.y));
  let top_right = raised(x_group(p.x, h.first, w.second, p.y));
  let left = raised(x_group(p.x, h.second, w.first, p.y));
  let right = raised(x_group(p.x, h.second, w.second, p.y));
  return corner_lane(top_left.a, top_right.a, left.a, right.a, w.weight, h.weight) |
         (corner_lane(top_left.b, top_right.b, left.b, right.b, w.weight, h.weight) << Words(8u)) |
         (corner_lane(top_left.c, top_right.c, left.c, right.c, w.weight, h.weight) << Words(16u)) |
         (corner_lane(top_left.d, top_right.d, left.d, right.d, w.weight, h.weight) << Words(24u));
}

// One channel of every word, from four corners that are in the highest byte of each Int.
fn corner_lane(top_left: Ints, top_right: Ints, left: Ints, right: Ints, w: i32, h: i32) -> Words {
  let byte = Words(24u);
  let top = across(top_left >> byte, top_right >> byte, w);
  let bottom = across(left >> byte, right >> byte, w);
  return bitcast<Words>(mixed(top, bottom, h)) & Words(0xffu);
}

// The interpolation of two elements of a row, in 2^-ROW_BITS steps above the zero point.
fn across(a: Ints, b: Ints, weight: i32) -> Ints {
  let rest = 18u - ROW_BITS;
  let difference = b - a;
  let low = (difference * (weight & ((1i << rest) - 1i)) + (1i << (rest - 1u))) >> Words(rest);
  return ((a - params.x_zero) << Words(ROW_BITS)) + difference * (weight >> rest) + low;
}

// The interpolation of two rows, in 2^-6 of their steps. The weight is split into groups of six bits, so that no product
// passes int32.
fn mixed(top: Ints, bottom: Ints, weight: i32) -> Ints {
  let difference = bottom - top;
  let low = ((difference * (weight & 63)) >> Words(6u)) + difference * ((weight >> 6u) & 63);
  return rounded_steps(top * Ints(64) + difference * (weight >> 12u) + (low >> Words(6u)));
}

fn rounded_steps(v: Ints) -> Ints {
  let steps = Ints(round(clamp(Floats(v) * params.multiplier, Floats(-STEPS_LIMIT), Floats(STEPS_LIMIT))));
  return clamp(steps + params.zero, Ints(params.lo), Ints(params.hi));
}
