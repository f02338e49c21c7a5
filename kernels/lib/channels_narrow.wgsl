// A pixel's channels word by word: see channels_wide.wgsl.
alias Words = u32;
alias Ints = i32;
alias Floats = f32;
