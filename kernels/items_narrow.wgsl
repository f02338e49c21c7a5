alias Loaded = u32;
