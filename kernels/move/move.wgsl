fn compute(p: vec4<u32>) -> Element { return x_at(source_of(p)); }
