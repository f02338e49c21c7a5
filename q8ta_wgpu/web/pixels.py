"""WGSL between pictures and tensors: fills an input from a texture, and draws an output to a canvas.

A picture has 8 bits a channel, so the network's input is a table of 256 numbers a channel, which q8ta.js computes
exactly. Grey is Y of ITU-R BT.601 in the integers of Pillow's convert("L").
"""

from __future__ import annotations

from q8ta_wgpu.ir.graph import INT16X4, INT32, TensorType
from q8ta_wgpu.ir.layout import Layout, canonical, packed_axis
from q8ta_wgpu.program import resolve

_READ = """
@group(0) @binding(0) var pixels: texture_2d<f32>;
@group(0) @binding(1) var<storage, read> table: array<{number}>;
@group(0) @binding(2) var<storage, read_write> x: array<{stored}>;
// Channel 0 is red, 1 green, 2 blue; a picture is transparent over white.
fn at(p: vec4<u32>) -> {number} {{
  if (any(p >= DIMS)) {{ return {number}(0); }}
  let pixel = textureLoad(pixels, p.wz, 0);
  let rgb = vec3<u32>(round(255.0 * (pixel.rgb + 1.0 - pixel.a)));
  return table[p.y * 256u + {byte}];
}}
@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {{
  let word = (group.y * 65535u + group.x) * 64u + thread;
  if (word >= arrayLength(&x)) {{ return; }}
  let p = coord_{layout}(word, DIMS);
  x[word] = {value};
}}
"""

_STEPS = """
const y1 = vec4<u32>(0u, 1u, 0u, 0u);
const w1 = vec4<u32>(0u, 0u, 0u, 1u);"""

_DRAW = """
@group(0) @binding(0) var<storage, read> y: array<{stored}>;
struct Drawn {{ low: f32, gain: f32, colours: u32 }};
@group(0) @binding(1) var<uniform> drawn: Drawn;
@group(0) @binding(2) var picture: texture_2d<f32>;
@group(0) @binding(3) var smoothly: sampler;
fn at(channel: u32, place: vec2<u32>) -> f32 {{
  let p = vec4<u32>(0u, channel, place.y, place.x);
  return {value};
}}
@vertex fn corner(@builtin(vertex_index) i: u32) -> @builtin(position) vec4<f32> {{
  return vec4<f32>(f32(i / 2u) * 4.0 - 1.0, f32(i % 2u) * 4.0 - 1.0, 0.0, 1.0);
}}
@fragment fn shown(@builtin(position) position: vec4<f32>) -> @location(0) vec4<f32> {{
  let place = vec2<u32>(position.xy);
  let rgb = clamp((vec3<f32>({channels}) - drawn.low) * drawn.gain, vec3<f32>(0.0), vec3<f32>(1.0));
  if (drawn.colours == 0u) {{ return vec4<f32>(rgb, 1.0); }}
  // The picture's own colours, with this luma: Cb and Cr stay.
  let own = textureSampleLevel(picture, smoothly, position.xy / vec2<f32>(DIMS.wz), 0.0).rgb;
  return vec4<f32>(own + rgb - dot(own, vec3<f32>(0.299, 0.587, 0.114)), 1.0);
}}
"""


def is_picture(t: TensorType) -> bool:
    """Whether a tensor is one picture: (1, 1 or 3, h, w), and no int16."""
    return len(t.shape) == 4 and t.shape[0] == 1 and t.shape[1] in (1, 3) and t.dtype not in (INT16X4, INT32)


def reading(t: TensorType, layout: Layout) -> str:
    """The compute shader that fills an input from a texture of its height and width."""
    lanes = ", ".join(f"at(p + {'xyzw'[packed_axis(layout)]}1 * {i}u)" for i in range(4))
    text = _READ.format(
        number="i32" if t.q else "f32",
        stored="u32" if t.q else "f32",
        byte="((rgb.r * 19595u + rgb.g * 38470u + rgb.b * 7471u + 32768u) >> 16u)" if t.shape[1] == 1 else "rgb[p.y]",
        layout=layout.short,
        value=f"pack4xI8(vec4<i32>({lanes}))" if t.q else "at(p)",
    )
    return resolve.complete(_dims(t) + _STEPS + text)


def drawing(t: TensorType, layout: Layout) -> str:
    """The vertex and fragment shaders that draw an output, one pixel an element."""
    value = f"y[index_{layout.short}(p, DIMS)]"
    if t.q:
        value = f"f32(lane({value}, p.{'xyzw'[packed_axis(layout)]} % 4u) - ({t.q.zero})) * f32({t.q.scale!r})"
    channels = ", ".join(f"at({channel}u, place)" for channel in range(t.shape[1]))
    return resolve.complete(_dims(t) + _DRAW.format(stored="u32" if t.q else "f32", value=value, channels=channels))


def _dims(t: TensorType) -> str:
    return f"const DIMS = vec4<u32>({', '.join(f'{d}u' for d in canonical(t.shape))});"
