// Rotates pairs of elements of a row by angles, as rotary.py defines it. The elements of a pair are neighbours
// (params.pairs is 1), or half a row distance.

// Whether an element is the first of its pair.
fn is_first(p: vec4<u32>) -> bool {
  return select(p.w < params.y_dims.w / 2u, p.w % 2u == 0u, params.pairs == 1u);
}

// The other element of a pair.
fn partner(p: vec4<u32>) -> vec4<u32> {
  let distance = select(params.y_dims.w / 2u, 1u, params.pairs == 1u);
  return vec4<u32>(p.xyz, select(p.w - distance, p.w + distance, is_first(p)));
}

// Coordinates of an element's angle in a tensor of extents `dims`, which has one angle for each pair or for each
// element.
fn angle(p: vec4<u32>, dims: vec4<u32>) -> vec4<u32> {
  let one = select(p.w % dims.w, p.w / 2u, params.pairs == 1u);
  return min(vec4<u32>(p.xyz, select(one, p.w, dims.w == params.y_dims.w)), dims - 1u);
}

fn rotary(p: vec4<u32>) -> f32 {
  let other = x_at(partner(p)) * sin_at(angle(p, params.sin_dims));
  return x_at(p) * cos_at(angle(p, params.cos_dims)) + select(other, -other, is_first(p));
}

fn q8ta_rotated(p: vec4<u32>) -> i32 {
  let own = (x_at(p) - params.x_zero) * (cos_at(angle(p, params.cos_dims)) - params.cos_zero);
  let other = (x_at(partner(p)) - params.x_zero) * (sin_at(angle(p, params.sin_dims)) - params.sin_zero);
  let term = scaled_term(other, params.sin_multiplier);
  let v = scaled_term(own, params.cos_multiplier) + select(term, -term, is_first(p));
  return clamp(rte(v, params.shift) + params.zero, params.lo, params.hi);
}

// A word of the result, element by element.
fn rotated_by_elements(p: vec4<u32>) -> Word {
  let lane = vec4<u32>(0u, 0u, 0u, 1u);
  return packed(vec4<i32>(
    q8ta_rotated(p), q8ta_rotated(p + lane), q8ta_rotated(p + 2u * lane), q8ta_rotated(p + 3u * lane)));
}

// A word of the result, where the partners of its elements are a whole word, or the word itself, and its angles are
// words.
fn rotated_by_words(p: vec4<u32>) -> Word {
  let own = x_lanes(x_word(p)) - params.x_zero;
  let cosines = cos_lanes(cos_word(angle(p, params.cos_dims))) - params.cos_zero;
  let sines = sin_lanes(sin_word(angle(p, params.sin_dims))) - params.sin_zero;
  let term = scaled_terms(others(p, own) * sines, params.sin_multiplier);
  let v = scaled_terms(own * cosines, params.cos_multiplier) + select(term, -term, firsts(p));
  return packed(int8_quad(v, params.shift, params.zero, params.lo, params.hi));
}

// It has no branch: with one here, Mesa's llvmpipe leaked 190 kB in each run of the shader.
fn others(p: vec4<u32>, own: vec4<i32>) -> vec4<i32> {
  return select(x_lanes(x_word(partner(p))) - params.x_zero, own.yxwz, params.pairs == 1u);
}

fn firsts(p: vec4<u32>) -> vec4<bool> {
  return select(vec4<bool>(is_first(p)), vec4<bool>(true, false, true, false), params.pairs == 1u);
}

// A word of rows that are written into a state.
fn rotated_word(word: u32) -> Word { return rotated(coord_4W(word, params.rows_dims)); }
