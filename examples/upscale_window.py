"""A window whose picture is drawn small and enlarged three times by an int8 network, on the application's own device:
drawing, network and screen share textures, and nothing passes through the host.

python -m examples.upscale_window [--offscreen frame.png]

The network is the demo's: it enlarges brightness; colours are interpolated, as video does. A window needs a library
that rendercanvas knows (`pip install glfw`); `--offscreen` draws one frame into a file.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from examples import needs

needs("torch", "PIL", "skimage", "rendercanvas")
import torch
import wgpu
from PIL import Image

import q8ta_wgpu as q8
from demo.network import FACTOR, trained
from examples import photos

_QUAD = """
struct Corner { @builtin(position) position: vec4<f32>, @location(0) uv: vec2<f32> };
@vertex fn corner(@builtin(vertex_index) i: u32) -> Corner {
  let uv = vec2(f32((i << 1u) & 2u), f32(i & 2u));
  return Corner(vec4(uv * vec2(2.0, -2.0) + vec2(-1.0, 1.0), 0.0, 1.0), uv);
}
fn luma(c: vec3<f32>) -> f32 { return dot(c, vec3(0.299, 0.587, 0.114)); }
@group(0) @binding(0) var linear: sampler;
@group(0) @binding(1) var a: texture_2d<f32>;
"""

_SCENE = f"""{_QUAD}
struct View {{ middle: vec2<f32>, scale: vec2<f32> }};
@group(0) @binding(2) var<uniform> view: View;
struct Drawn {{ @location(0) colour: vec4<f32>, @location(1) luma: vec4<f32> }};
@fragment fn draw(corner: Corner) -> Drawn {{
  let c = textureSample(a, linear, view.middle + (corner.uv - 0.5) * view.scale).rgb;
  return Drawn(vec4(c, 1.0), vec4(luma(c)));
}}
"""

_SCREEN = f"""{_QUAD}
@group(0) @binding(2) var enlarged: texture_2d<f32>;
@fragment fn draw(corner: Corner) -> @location(0) vec4<f32> {{
  let size = vec2<f32>(textureDimensions(enlarged));
  let y = textureLoad(enlarged, vec2<u32>(clamp(corner.uv * size, vec2(0.0), size - 1.0)), 0).r;
  let c = textureSample(a, linear, corner.uv).rgb;
  return vec4(c + y - luma(c), 1.0);
}}
"""


class Application:
    """Draws a photograph into a small texture, enlarges it by the network, and draws the result on a canvas.

    Args:
        canvas: of rendercanvas, FACTOR times as large as the small picture.
        device: the application's own, of wgpu.
        size: width and height of the small picture.
    """

    def __init__(self, canvas: Any, device: Any, size: tuple[int, int]) -> None:
        self.device = device
        self.context = canvas.get_wgpu_context()
        format = self.context.get_preferred_format(device.adapter).removesuffix("-srgb")
        self.context.configure(device=device, format=format)

        usage = wgpu.TextureUsage
        drawn = usage.RENDER_ATTACHMENT | usage.TEXTURE_BINDING
        picture = np.asarray(photos.photo("astronaut").convert("RGBA"))
        self.photo = self._texture(picture.shape[1::-1], usage.COPY_DST | usage.TEXTURE_BINDING)
        layout = {"bytes_per_row": picture.strides[0], "rows_per_image": picture.shape[0]}
        device.queue.write_texture(
            {"texture": self.photo}, np.ascontiguousarray(picture), layout, (*picture.shape[1::-1], 1)
        )
        self.small, self.luma = self._texture(size, drawn), self._texture(size, drawn)
        self.zoom = 0.6, 0.6 * size[1] / size[0]  # of the photograph, which is square
        large = size[0] * FACTOR, size[1] * FACTOR
        self.enlarged = self._texture(large, usage.STORAGE_BINDING | usage.TEXTURE_BINDING)

        self.session = q8.Session(model((size[1], size[0])), device)  # on the application's device
        self.network = self.session.bind(self.luma, outputs=[self.enlarged])

        self.view = device.create_buffer(size=16, usage=wgpu.BufferUsage.UNIFORM | wgpu.BufferUsage.COPY_DST)
        self.scene = self._pass(_SCENE, ["rgba8unorm"] * 2, self.photo, {"buffer": self.view})
        self.screen = self._pass(_SCREEN, [format], self.small, self.enlarged.create_view())

    def _texture(self, size: tuple[int, int], usage: int) -> Any:
        return self.device.create_texture(size=(*size, 1), format="rgba8unorm", usage=usage)

    def _pass(self, text: str, formats: Sequence[str], sampled: Any, last: Any) -> tuple[Any, Any]:
        """A pipeline that draws one triangle over everything, and what it reads."""
        module = self.device.create_shader_module(code=text)
        pipeline = self.device.create_render_pipeline(
            layout="auto",
            vertex={"module": module, "entry_point": "corner"},
            primitive={"topology": "triangle-list"},
            fragment={"module": module, "entry_point": "draw", "targets": [{"format": f} for f in formats]},
        )
        linear = self.device.create_sampler(min_filter="linear", mag_filter="linear")
        entries = [linear, sampled.create_view(), last]
        group = self.device.create_bind_group(
            layout=pipeline.get_bind_group_layout(0),
            entries=[{"binding": i, "resource": resource} for i, resource in enumerate(entries)],
        )
        return pipeline, group

    def frame(self, seconds: float) -> None:
        """Draws one frame, in one submission: the scene, the network, the screen."""
        middle = 0.5 + 0.1 * np.sin(seconds), 0.35 + 0.05 * np.cos(seconds)
        self.device.queue.write_buffer(self.view, 0, np.array([*middle, *self.zoom], np.float32))
        encoder = self.device.create_command_encoder()
        self._draw(encoder, self.scene, [self.small.create_view(), self.luma.create_view()])
        self.network.record(encoder)
        self._draw(encoder, self.screen, [self.context.get_current_texture().create_view()])
        self.device.queue.submit([encoder.finish()])

    def _draw(self, encoder: Any, what: tuple[Any, Any], targets: Sequence[Any]) -> None:
        attachments = [
            {"view": target, "load_op": "clear", "store_op": "store", "clear_value": (0, 0, 0, 1)} for target in targets
        ]
        drawing = encoder.begin_render_pass(color_attachments=attachments)
        drawing.set_pipeline(what[0])
        drawing.set_bind_group(0, what[1])
        drawing.draw(3)
        drawing.end()


def model(size: tuple[int, int]) -> q8.Model:
    """The demo's network in int8, for luma of a height and width."""
    picture = np.asarray(photos.photo("coffee").convert("L"), np.float32) / 255
    batches = [torch.from_numpy(picture[None, None, y : y + 64, y : y + 64].copy()) for y in (0, 100, 200, 300)]
    made = q8.compile(q8.quantize(trained(), (batches[0],), calibration=batches))
    return made.reshape((1, 1, *size))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.upscale_window", description=__doc__)
    parser.add_argument("--offscreen", metavar="FRAME.png", help="draw one frame into a file, without a window")
    parser.add_argument("--size", type=int, nargs=2, default=(320, 240), metavar=("WIDTH", "HEIGHT"))
    options = parser.parse_args(arguments)
    size = tuple(FACTOR * side for side in options.size)
    device = wgpu.gpu.request_adapter_sync(power_preference="high-performance").request_device_sync()
    if options.offscreen:
        from rendercanvas.offscreen import RenderCanvas

        canvas = RenderCanvas(size=size, pixel_ratio=1)
        application = Application(canvas, device, tuple(options.size))
        canvas.request_draw(lambda: application.frame(0.0))
        Image.fromarray(np.asarray(canvas.draw())[..., :3]).save(options.offscreen)
        print(f"{options.offscreen}: {options.size[0]}x{options.size[1]} enlarged on {application.session.name}")
        return
    from rendercanvas.auto import RenderCanvas, loop

    canvas = RenderCanvas(size=size, title="enlarged in int8", update_mode="continuous", max_fps=60)
    application = Application(canvas, device, tuple(options.size))
    canvas.request_draw(lambda: application.frame(time.perf_counter()))
    loop.run()


if __name__ == "__main__":
    main()
