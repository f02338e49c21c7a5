// A pixel's channels in vectors of four words, where they come in whole ones. Lane j of an Ints is a channel of word j.
alias Words = vec4<u32>;
alias Ints = vec4<i32>;
alias Floats = vec4<f32>;
