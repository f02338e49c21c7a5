alias Loaded = vec4<u32>;
