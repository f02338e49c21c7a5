// Epilogue of four outputs of a linear with a row-major float result: (f32(acc) + f32(offset)) * multiplier.

struct Channel { multiplier: vec4<f32>, offset: vec4<i32> }

fn channel_quad(quad: u32) -> Channel { return Channel(multiplier[quad], offset[quad]); }

fn start_quad(quad: u32) -> vec4<i32> { return -correction[quad]; }

fn store_quad(acc: vec4<i32>, channel: Channel, m: u32, quad: u32) {
  let real = (vec4<f32>(acc) + vec4<f32>(channel.offset)) * channel.multiplier;
  let outputs = params.y_dims.w;
  for (var i = 0u; i < min(outputs - quad * 4u, 4u); i++) { y[m * outputs + quad * 4u + i] = real[i]; }
}
