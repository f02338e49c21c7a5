// An element by one thread, for kernels whose loops can be shared (kernels/lib/share.py).
fn compute(p: vec4<u32>) -> Element { return finish(p, part(p, vec4<u32>())); }
