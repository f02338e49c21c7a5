// An activation before rounding, as a piecewise linear curve (kernels/epilogue/curve.py defines it).
fn unrounded(v: vec4<i32>, m: u32, quad: u32) -> vec4<i32> {
  let within = clamp(v, vec4<i32>(0), vec4<i32>(params.curve_end));
  let at = within >> vec4<u32>(FRACTION);
  let part = within & vec4<i32>((1i << FRACTION) - 1i);
  let start = vec4<i32>(curve[at.x], curve[at.y], curve[at.z], curve[at.w]);
  let end = vec4<i32>(curve[at.x + 1i], curve[at.y + 1i], curve[at.z + 1i], curve[at.w + 1i]);
  return start + (((end - start) * part) >> vec4<u32>(FRACTION));
}
