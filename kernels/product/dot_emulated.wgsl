// Dot product of four int8 with four int8, for devices where the packed form is slower than this.
fn dot4(a: u32, b: u32) -> i32 {
  let v = unpack4xI8(a) * unpack4xI8(b);
  return v.x + v.y + v.z + v.w;
}
