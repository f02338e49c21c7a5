// Chains of elementwise operators. A thread computes a word of the result: four exact sums, then the stages of an
// epilogue (kernels/epilogue/quad.wgsl). They read operands by the index of the word, not by a quad of channels.
// Linked: sums, numbers_at, a_values and b_values; CHANNEL_AXIS, the axis of the channels.
// Uses quad, stages.
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
  let word = id.y * groups.x * 64u + id.x;
  if (word >= params.words) { return; }
  let p = y_coord(word);
  let c = channel_lanes(p);
  let v = quad_value(vec4<f32>(sums(word, p)), channel_with(numbers_at(c), c), residual_of(word, 0u));
  y[word] = packed(after_rounding(v, addend_of(word, 0u)));
}

// --- the numbers of four channels ---

// The channels of a word's lanes; 0 where one multiplier serves all channels.
fn channel_lanes(p: vec4<u32>) -> vec4<u32> {
  let lanes = vec4<u32>(0u, 1u, 2u, 3u) * Y_LANE[CHANNEL_AXIS];
  return min(vec4<u32>(p[CHANNEL_AXIS] / params.inner % params.channels) + lanes, vec4<u32>(params.channels - 1u));
}

fn lane_multipliers(c: vec4<u32>) -> vec4<f32> {
  return vec4<f32>(multiplier[c.x], multiplier[c.y], multiplier[c.z], multiplier[c.w]);
}

fn lane_offsets(c: vec4<u32>) -> vec4<i32> {
  return vec4<i32>(offset[c.x], offset[c.y], offset[c.z], offset[c.w]);
}

fn scaled_numbers(c: vec4<u32>) -> Numbers { return Numbers(lane_multipliers(c), lane_offsets(c)); }

// For sums that are multiplied already.
fn offsets_alone(c: vec4<u32>) -> Numbers { return Numbers(vec4<f32>(1.0), lane_offsets(c)); }

// --- sums ---

const LARGEST = 0x1.fffffep+127f;

// NaN counts as 0. An infinity counts as the largest float, so that its product with 0 is 0.
fn q8ta_quantize_channels_sums(word: u32, p: vec4<u32>) -> vec4<i32> {
  let last = params.x_dims - 1u;
  let v = vec4<f32>(x_at(min(p, last)), x_at(min(p + Y_LANE, last)), x_at(min(p + 2u * Y_LANE, last)),
                    x_at(min(p + 3u * Y_LANE, last)));
  let bits = bitcast<vec4<u32>>(v) & vec4<u32>(0x7fffffffu);
  let finite = clamp(v, vec4<f32>(-LARGEST), vec4<f32>(LARGEST));
  let numbers = select(finite, vec4<f32>(0.0), bits > vec4<u32>(0x7f800000u));
  let steps = numbers * lane_multipliers(channel_lanes(p));
  return vec4<i32>(round(clamp(steps, vec4<f32>(-T_LIMIT), vec4<f32>(T_LIMIT))));
}

fn q8ta_batch_norm_sums(word: u32, p: vec4<u32>) -> vec4<i32> { return x_lanes(x_word_of(word)) - params.x_zero; }

// As in q8ta_add, partial sums may wrap modulo 2^32. The complete sum fits int32.
fn q8ta_add_chain_sums(word: u32, p: vec4<u32>) -> vec4<i32> {
  return a_values(word, p) * params.a_multiplier + (b_values(word, p) * params.b_multiplier + params.terms_offset);
}

// As in q16ta_add.
fn q16ta_add_chain_sums(word: u32, p: vec4<u32>) -> vec4<i32> {
  return scaled_terms(a_values(word, p) - params.a_zero, params.a_multiplier) +
         scaled_terms(b_values(word, p) - params.b_zero, params.b_multiplier);
}

fn q8ta_mul_chain_sums(word: u32, p: vec4<u32>) -> vec4<i32> {
  return (a_values(word, p) - params.a_zero) * (b_values(word, p) - params.b_zero);
}

fn a_same(word: u32, p: vec4<u32>) -> vec4<i32> { return a_lanes(a_word_of(word)); }

fn b_same(word: u32, p: vec4<u32>) -> vec4<i32> { return b_lanes(b_word_of(word)); }

// Dimensions of extent 1 are broadcast.
fn a_broadcast(word: u32, p: vec4<u32>) -> vec4<i32> {
  let last = params.a_dims - 1u;
  return vec4<i32>(a_at(min(p, last)), a_at(min(p + Y_LANE, last)), a_at(min(p + 2u * Y_LANE, last)),
                   a_at(min(p + 3u * Y_LANE, last)));
}

fn b_broadcast(word: u32, p: vec4<u32>) -> vec4<i32> {
  let last = params.b_dims - 1u;
  return vec4<i32>(b_at(min(p, last)), b_at(min(p + Y_LANE, last)), b_at(min(p + 2u * Y_LANE, last)),
                   b_at(min(p + 3u * Y_LANE, last)));
}
