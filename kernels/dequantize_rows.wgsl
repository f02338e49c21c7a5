// Rows of floats that are whole words: a word of x is the same place's four floats.
fn apply_word(word: u32) -> vec4<f32> { return vec4<f32>(unpack4xI8(x[word]) - params.x_zero) * params.scale; }
