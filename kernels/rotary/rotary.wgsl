// Pairs of elements of a row, side by side or a half of the row apart, turned by angles; rotary.py defines it.

// Whether an element is the first of its pair.
fn is_first(p: vec4<u32>) -> bool {
  return select(p.w < params.y_dims.w / 2u, p.w % 2u == 0u, params.pairs == 1u);
}

// The other element of a pair.
fn partner(p: vec4<u32>) -> vec4<u32> {
  let apart = select(params.y_dims.w / 2u, 1u, params.pairs == 1u);
  return vec4<u32>(p.xyz, select(p.w - apart, p.w + apart, is_first(p)));
}

// Where an element's angle lies among `dims`: a pair has one, or two that are the same.
fn angle(p: vec4<u32>, dims: vec4<u32>) -> vec4<u32> {
  let one = select(p.w % dims.w, p.w / 2u, params.pairs == 1u);
  return min(vec4<u32>(p.xyz, select(one, p.w, dims.w == params.y_dims.w)), dims - 1u);
}

fn rotary(p: vec4<u32>) -> f32 {
  let other = x_at(partner(p)) * sin_at(angle(p, params.sin_dims));
  return x_at(p) * cos_at(angle(p, params.cos_dims)) + select(other, -other, is_first(p));
}

fn q8ta_turned(p: vec4<u32>) -> i32 {
  let own = (x_at(p) - params.x_zero) * (cos_at(angle(p, params.cos_dims)) - params.cos_zero);
  let other = (x_at(partner(p)) - params.x_zero) * (sin_at(angle(p, params.sin_dims)) - params.sin_zero);
  let term = scaled_term(other, params.sin_multiplier);
  let v = scaled_term(own, params.cos_multiplier) + select(term, -term, is_first(p));
  return clamp(rte(v, params.shift) + params.zero, params.lo, params.hi);
}

// A word of the result, element by element.
fn turned_by_elements(p: vec4<u32>) -> Word {
  let lane = vec4<u32>(0u, 0u, 0u, 1u);
  return packed(vec4<i32>(
    q8ta_turned(p), q8ta_turned(p + lane), q8ta_turned(p + 2u * lane), q8ta_turned(p + 3u * lane)));
}

// A word of the result where the other elements of its pairs are a word, or the word itself, and so are its angles.
fn turned_by_words(p: vec4<u32>) -> Word {
  let own = x_lanes(x_word(p)) - params.x_zero;
  let cosines = cos_lanes(cos_word(angle(p, params.cos_dims))) - params.cos_zero;
  let sines = sin_lanes(sin_word(angle(p, params.sin_dims))) - params.sin_zero;
  let term = scaled_terms(others(p, own) * sines, params.sin_multiplier);
  let v = scaled_terms(own * cosines, params.cos_multiplier) + select(term, -term, firsts(p));
  return packed(int8_quad(v, params.shift, params.zero, params.lo, params.hi));
}

// Without a branch: Mesa's llvmpipe kept 190 kB of each run of a shader that read behind one here.
fn others(p: vec4<u32>, own: vec4<i32>) -> vec4<i32> {
  return select(x_lanes(x_word(partner(p))) - params.x_zero, own.yxwz, params.pairs == 1u);
}

fn firsts(p: vec4<u32>) -> vec4<bool> {
  return select(vec4<bool>(is_first(p)), vec4<bool>(true, false, true, false), params.pairs == 1u);
}

// A word of rows that are written into a state.
fn turned_word(word: u32) -> Word { return turned(coord_4W(word, params.rows_dims)); }
