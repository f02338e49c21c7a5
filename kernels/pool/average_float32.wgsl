// Sum of the elements in window(p) (windows.wgsl) over its divisor.
alias Partial = f32;
fn merge(a: f32, b: f32) -> f32 { return a + b; }
fn first_item(start: vec4<u32>) -> f32 { return 0.0; }
fn item(x: f32) -> f32 { return x; }
fn finish(p: vec4<u32>, sum: f32) -> f32 { return sum / f32(window(p).divisor); }
