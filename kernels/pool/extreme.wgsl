// The largest element in window(p) (windows.wgsl), or with LARGEST = 0 the smallest.
alias Partial = Element;
fn merge(a: Element, b: Element) -> Element { return select(minimum(a, b), maximum(a, b), LARGEST == 1u); }
fn first_item(start: vec4<u32>) -> Element { return x_at(start); }
fn item(x: Element) -> Element { return x; }
fn finish(p: vec4<u32>, found: Element) -> Element { return found; }
