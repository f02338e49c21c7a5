// The sum of the elements in window(p) (windows.wgsl), floats or integers, divided by the window's divisor.
alias Partial = Element;
fn merge(a: Element, b: Element) -> Element { return a + b; }
fn first_item(start: vec4<u32>) -> Element { return Element(0); }
fn item(x: Element) -> Element { return x; }
fn finish(p: vec4<u32>, sum: Element) -> Element { return sum / Element(window(p).divisor); }
