// Windows of int16 that are so small that one sum has room for both halves.
alias Acc = vec4<i32>;

fn zero_word() -> vec2<u32> { return params.x_zeros.xy; }
fn start_acc(quad: u32) -> Acc { return correction[quad] * -(256 * params.high_zero + params.low_zero + 128); }
fn real_acc(acc: Acc) -> vec4<f32> { return vec4<f32>(acc); }
