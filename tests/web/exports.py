"""What the tests of web pages share: networks, their exports, and what JavaScript computes from them."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import q8ta_wgpu as q8
from demo.network import trained
from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.model.model import Model
from testbed.blocks import EncoderLayer, conv_bn
from testbed.harness import flat
from testbed.networks import example_input, mobilenet_v2, unet
from testbed.networks import trained as untrained
from testbed.onnx import networks as onnx_files
from testbed.small import small_model

MODEL = small_model()

LOAD = """
    const q8ta = await import(given.script);
    const net = await q8ta.load(given.url, given.options ?? {});
"""
RUN = """
    const bytes = async (url) => await (await fetch(url)).arrayBuffer();
    const inputs = {};
    for (const { name, dtype, shape } of net.inputs) {
        const kinds = { float32: Float32Array, int8: Int8Array, int16: Int16Array, int32: Int32Array };
        inputs[name] = new (kinds[dtype] ?? Uint8Array)(await bytes(`${given.url}/${name}.bin`));
    }
    const flat = (y) => ArrayBuffer.isView(y) ? [y] : Object.values(y ?? {}).flatMap(flat);
    const text = (y) => btoa(Array.from(new Uint8Array(y.buffer), (b) => String.fromCharCode(b)).join(""));
"""


class ImageEncoder(nn.Module):
    """Patches of a picture and a token of their own, through a layer of attention, to logits."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 64, 8, 8)
        self.token, self.places = nn.Parameter(torch.randn(1, 1, 64)), nn.Parameter(torch.randn(1, 10, 64))
        self.layer, self.norm, self.head = EncoderLayer(1), nn.LayerNorm(64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), 1) + self.places
        y: Tensor = self.head(self.norm(self.layer(x))[:, 0])
        return y


class TextEncoder(nn.Module):
    """Embeddings of two sentences through torch's own layer of attention, to one vector each."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(32, 2, 48, activation="gelu", batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x).mean(1)
        return y


class Segmentation(nn.Module):
    """Two sizes of features, the smaller one resized, side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.fine, self.coarse = conv_bn(3, 8, act=None), conv_bn(8, 16, stride=2, act=None)
        self.slopes, self.more, self.head = nn.PReLU(8), nn.PReLU(16), nn.Conv2d(24, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.slopes(self.fine(x))
        coarse = F.interpolate(self.more(self.coarse(fine)), size=fine.shape[-2:], mode="bilinear")
        y: Tensor = self.head(torch.cat((fine, coarse), 1))
        return y


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "demo": (trained, (1, 1, 18, 22)),
    "mobilenet_v2": (lambda: mobilenet_v2(0.25), (1, 3, 224, 224)),
    "unet": (lambda: unet(0.25), (1, 3, 32, 32)),
    "image encoder": (lambda: untrained(ImageEncoder, (1, 3, 24, 24), 0), (1, 3, 24, 24)),
    "text encoder": (lambda: untrained(TextEncoder, (2, 11, 32), 0), (2, 11, 32)),
    "segmentation": (lambda: untrained(Segmentation, (1, 3, 13, 22), 0), (1, 3, 13, 22)),
    "onnx file": (nn.Identity, (1, 3, 24, 24)),
}
"""Networks and the shape of their input; that of a file is read by from_onnx."""


def demo_model() -> Model:
    x = torch.rand((1, 1, 18, 22), generator=torch.Generator().manual_seed(0))
    return q8.compile(q8.quantize(trained(), (x,), calibration=[x], progress=False))


def network(name: str) -> tuple[Model, dict[str, Array]]:
    factory, shape = NETWORKS[name]
    if name == "onnx file":
        return q8.from_onnx(onnx_files.quantized("upsampling", "QDQ", "u8u8")), {
            "x": onnx_files.inputs("upsampling", 1)[0]
        }
    if name == "demo":
        return demo_model(), {"x": np.random.default_rng(5).random(shape, np.float32)}
    x = example_input(shape)
    program = q8.quantize(factory(), (x,), calibration=[x], progress=False)
    model = q8.compile(program, int8_outputs=name == "text encoder")
    return model, {model.graph.inputs[0]: x.numpy()}


def outputs(js: Any, folder: Path, name: str, model: Model, inputs: dict[str, Array], **options: Any) -> list[Array]:
    """What JavaScript computes from arrays, flat, in the order of the model's outputs."""
    q8.export_web(model, folder / name)
    for key, array in inputs.items():
        (folder / name / f"{key}.bin").write_bytes(array.tobytes())
    code = "const y = await net.run(inputs); net.destroy(); return flat(y).map(text);"
    found = js(RUN + code, name, options=options)
    types = [model.graph.types[output] for output in model.graph.results]
    dtypes = [
        np.uint8 if model.structure.gives_bytes(place, given == np.int8) else given
        for place, given in enumerate(map(model.graph.array_dtype, model.graph.results))
    ]
    arrays = zip(found, dtypes, types, strict=True)
    return [np.frombuffer(base64.b64decode(text), dtype).reshape(t.shape) for text, dtype, t in arrays]


def reads_parts(folder: Path) -> bool:
    """Whether convolutions of an export read parts of tensors in place, at least in its program for GPUs."""
    programs = [file.read_text() for file in folder.glob("*.json") if file.name != "net.json"]
    return any("q8ta_conv2d_parts" in text for text in programs)


def equal(found: list[Array], model: Model, inputs: dict[str, Array]) -> None:
    expected = flat(q8.Session(model, "reference")(**inputs))
    for f, e in zip(found, expected, strict=True):
        assert (f.dtype, f.shape) == (e.dtype, e.shape)
        assert int((f.view(np.uint8) != e.view(np.uint8)).sum()) == 0


def copied(folder: Path, name: str) -> Path:
    """A copy of the small model's export, to be changed."""
    return Path(shutil.copytree(folder / "small", folder / name, dirs_exist_ok=True))
