// Weights of 8 bits for gemm_units: a load is a vector of k, and a channel is one column. `at` counts loads, `channel`
// channels of the call or of the tile, and k vectors of 16 inputs.
alias UnitWeights = vec4<u32>;

fn unit_weights(at: u32, channel: u32, k: u32) -> UnitWeights { return weight[at]; }
fn unit_column(channel: u32, part: u32) -> u32 { return channel; }
fn unit_vector(w: UnitWeights, part: u32, v: u32) -> vec4<u32> { return w; }
fn unit_sum(at: u32) -> vec4<i32> { return bitcast<vec4<i32>>(staged[at]); }
