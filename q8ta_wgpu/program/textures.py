"""WGSL that copies an application's texture to an input of a program, or an output to a texture, in one dispatch.

A texture holds one image with the channels of the value. An image of one channel is grey.
"""

from __future__ import annotations

from q8ta_wgpu.ir.graph import INT8X4
from q8ta_wgpu.ir.layout import PACKINGS, Layout, Shape, canonical, word_count
from q8ta_wgpu.program import resolve
from q8ta_wgpu.program.program import Port

CHANNELS = (1, 3, 4)
"""Numbers of channels that an image may have."""

WRITABLE = ("rgba8unorm", "rgba16float", "rgba32float")
"""Formats with four float channels that every WebGPU device can store to."""

_THREADS = 64


def image_size(shape: Shape) -> tuple[int, int] | None:
    """Width and height of a value that is one image; None for others."""
    n, c, h, w = canonical(shape)
    return (w, h) if n == 1 and c in CHANNELS else None


def groups(port: Port) -> int:
    """Workgroups of the shader for a port."""
    return -(-_threads(port) // _THREADS)


def _threads(port: Port) -> int:
    """Threads of the shader: one for each word of an int8 input, else one for each pixel."""
    n, _, h, w = canonical(port.shape)
    return word_count(port.shape, _layout(port)) if port.dtype == INT8X4 else n * h * w


def _layout(port: Port) -> Layout:
    return next(layout for layout in Layout if layout.short == port.layout)


def read_texture(port: Port) -> str:
    """A shader that copies a texture to an input: to float32 the values that a shader reads, to uint8 255 times these.

    Bindings: 0 the texture, 1 the value.
    """
    return _image(port) if port.dtype != INT8X4 else _packed_image(port)


_HEAD = "@group(0) @binding(0) var image: texture_2d<f32>;"


def _main(port: Port, body: str) -> str:
    return f"""
@compute @workgroup_size({_THREADS})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {{
  let i = (group.y * groups.x + group.x) * {_THREADS}u + thread;
  if (i >= {_threads(port)}u) {{ return; }}
{body}
}}
"""


def _image(port: Port) -> str:
    _, c, h, w = canonical(port.shape)
    stores = "\n".join(f"  y[i + {k * h * w}u] = texel[{k}];" for k in range(c))
    body = f"  let texel = textureLoad(image, vec2(i % {w}u, i / {w}u), 0);\n{stores}"
    binding = "@group(0) @binding(1) var<storage, read_write> y: array<f32>;"
    return f"// texture to float32\n{_HEAD}\n{binding}{_main(port, body)}"


def _packed_image(port: Port) -> str:
    """The shader for uint8 inputs. A thread writes one word in the input's layout, with 128 subtracted from each byte,
    as the graph stores uint8."""
    n, c, h, w = canonical(port.shape)
    layout = _layout(port)
    axis = "xyzw"[PACKINGS[layout].packed]
    body = f"""  let extents = vec4<u32>({n}u, {c}u, {h}u, {w}u);
  var at = coord_{layout.short}(i, extents);
  var word = 0u;
  for (var lane = 0u; lane < 4u; lane++) {{
    if (all(at < extents)) {{
      let level = textureLoad(image, at.wz, 0)[at.y];
      word |= (u32(round(clamp(level, 0.0, 1.0) * 255.0)) ^ 128u) << (8u * lane);
    }}
    at.{axis} += 1u;
  }}
  y[i] = word;"""
    binding = "@group(0) @binding(1) var<storage, read_write> y: array<u32>;"
    return resolve.complete(f"// texture to uint8\n{_HEAD}\n{binding}{_main(port, body)}")


def write_texture(port: Port, format: str) -> str:
    """A shader that writes a float32 output to a texture of a format in WRITABLE; a missing alpha channel is opaque.

    Bindings: 0 the value, 1 the texture.
    """
    _, c, h, w = canonical(port.shape)
    channels = [f"x[i + {k * h * w}u]" for k in range(c)]
    texel = ", ".join([*(channels * 3 if c == 1 else channels), "1.0"][:4])
    body = f"  textureStore(image, vec2(i % {w}u, i / {w}u), vec4({texel}));"
    head = f"@group(0) @binding(1) var image: texture_storage_2d<{format}, write>;"
    return f"// float32 to texture\n@group(0) @binding(0) var<storage, read> x: array<f32>;\n{head}{_main(port, body)}"
