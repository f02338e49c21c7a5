"""Torch modules as ONNX files, quantized by ONNX Runtime, and how what is read of them agrees with it."""

from __future__ import annotations

import functools
import io
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import onnx
import torch
from torch import Tensor, nn

import q8ta_wgpu as q8
from q8ta_wgpu.ir.graph import FLOAT32, INT8X4, Array
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.onnx_import.onnx_nodes import label
from testbed.networks import NETWORKS, example_input, transformer
from testbed.onnx.networks import by_onnx_runtime, quantize

FORMS = ("QDQ", "QOperator", "dynamic")
TOKENS = 1000


class Bert(nn.Module):
    """A text encoder: embeddings of tokens and positions, then layers that are normalized behind each sum."""

    def __init__(self, depth: int, heads: int, tokens: int) -> None:
        super().__init__()
        width = 64 * heads
        self.words, self.places = nn.Embedding(TOKENS, width), nn.Parameter(torch.randn(1, tokens, width))
        self.norm = nn.LayerNorm(width)
        options: dict[str, Any] = {
            "dim_feedforward": 4 * width,
            "dropout": 0.0,
            "activation": "gelu",
            "batch_first": True,
        }
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(width, heads, **options) for _ in range(depth))

    def forward(self, tokens: Tensor) -> Tensor:
        x: Tensor = self.norm(self.words(tokens) + self.places)
        for layer in self.layers:
            x = layer(x)
        return x


class Lstm(nn.Module):
    """Two layers in both directions, and a linear for each step."""

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        self.layers = nn.LSTM(inputs, units, 2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(2 * units, 32)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.layers(x)[0])
        return y


class Module(NamedTuple):
    """A network of its own size and a small one: what makes it, and the shape of its input, of integers for a text."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    small: Callable[[], nn.Module]
    small_shape: tuple[int, ...]


def _of(name: str, width: float) -> Module:
    network = NETWORKS[name]
    small = functools.partial(network.factory, width)
    return Module(network.factory, network.shape, small, (*network.small_shape[:2], 32, 32))


def _seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make().eval()


MODULES: Mapping[str, Module] = {
    "ResNet-50": _of("resnet50", 0.125),
    "MobileNetV2": _of("mobilenet_v2", 0.25),
    "U-Net": _of("unet", 0.5),
    "ViT-Tiny": Module(transformer, (1, 196, 192), functools.partial(transformer, 0.34, depth=2), (1, 9, 192)),
    "BERT-base": Module(
        lambda: _seeded(lambda: Bert(12, 12, 128)), (1, 128), lambda: _seeded(lambda: Bert(2, 1, 9)), (1, 9)
    ),
    "LSTM": Module(
        lambda: _seeded(lambda: Lstm(64, 256)), (1, 64, 64), lambda: _seeded(lambda: Lstm(8, 12)), (1, 6, 8)
    ),
}


def inputs(shape: tuple[int, ...], count: int, first: int = 0) -> list[Tensor]:
    """Inputs of a module, of tokens where the shape has two dimensions."""
    seeds = range(first, first + count)
    if len(shape) > 2:
        return [example_input(shape, seed) for seed in seeds]
    return [torch.randint(0, TOKENS, shape, generator=torch.Generator().manual_seed(seed)) for seed in seeds]


@functools.cache
def exported(name: str, small: bool) -> bytes:
    """A module as a float ONNX file."""
    module = MODULES[name]
    make, shape = (module.small, module.small_shape) if small else (module.make, module.shape)
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own, of what will be another exporter
        x = inputs(shape, 1)[0]
        torch.onnx.export(
            make(),
            (x,),
            cast("Any", file),
            dynamo=False,
            opset_version=17,
            input_names=["x"],
            output_names=["y"],
            verbose=False,
        )
    return file.getvalue()


@functools.cache
def quantized(name: str, form: str, small: bool) -> bytes:
    """That file as ONNX Runtime quantizes it."""
    shape = MODULES[name].small_shape if small else MODULES[name].shape
    calibration = [x.numpy() for x in inputs(shape, 4, 100)]
    return quantize(
        exported(name, small), form, calibration, ("QUInt8" if form == "QOperator" else "QInt8", "QInt8", True)
    )


@dataclass(frozen=True)
class Agreement:
    """What is read of a file beside ONNX Runtime's processor provider.

    Attributes:
        macs: share of the multiply-adds that are in int8.
        beyond: float operators that the file does not leave in float.
        left: those that it leaves in float, by operator.
        equal: share of int8 elements that are ONNX Runtime's, each operator given ONNX Runtime's operands.
        steps: largest difference of these, in steps.
        decibels: the results' signal to noise against ONNX Runtime's, of the whole network.
    """

    macs: float
    beyond: tuple[str, ...]
    left: tuple[str, ...]
    equal: float
    steps: int
    decibels: float


def agreement(data: bytes, model: q8.Model, x: Array) -> Agreement:
    """Compares a model with its file."""
    file = onnx.ModelProto.FromString(data)
    result = file.graph.output[0].name
    left = _left_in_float(file)
    written = [name for node in file.graph.node for name in node.output if name and name != result]
    file.graph.output.extend(onnx.ValueInfoProto(name=name) for name in written)
    theirs = dict(zip([result, *written], by_onnx_runtime(file.SerializeToString(), x), strict=True))
    graph = model.graph
    values = {
        **graph.constants,
        **{name: graph.stored(name, x.astype(graph.array_dtype(name))) for name in graph.inputs},
    }
    apart = [np.zeros(0, np.int64)]
    for node in graph.nodes:
        found = np.asarray(OPS[node.op].reference(graph.call(node), [values[name] for name in node.inputs]))
        expected = theirs.get(re.sub(r"\.\d+$", "", node.output))
        values[node.output] = found
        if expected is not None and graph.types[node.output].dtype == INT8X4 and expected.shape == found.shape:
            expected = expected.astype(np.int64) - (128 if expected.dtype == np.uint8 else 0)
            apart.append(np.abs(found.astype(np.int64) - expected).reshape(-1))
            values[node.output] = expected.astype(np.int8)
    report, steps = model.report(), np.concatenate(apart)
    types = graph.types
    floats = [(n.op, n.source) for n in graph.nodes if n.op in report.float32 and types[n.output].dtype == FLOAT32]
    y = np.asarray(q8.Session(model, device="reference")(x))
    noise = float(((y - theirs[result]) ** 2).sum())
    return Agreement(
        report.macs[0] / max(report.macs[1], 1),
        tuple(sorted({f"{op} ({source})" for op, source in floats if source not in left})),
        tuple(sorted({source.partition(" ")[0] for _, source in floats if source in left})),
        float((steps == 0).mean()) if steps.size else 1.0,
        int(steps.max(initial=0)),
        10 * float(np.log10((theirs[result] ** 2).sum() / max(noise, 1e-30))),
    )


def _left_in_float(file: onnx.ModelProto) -> set[str]:
    """Nodes that read or write a value that the file does not quantize, by label."""
    nodes = file.graph.node
    constants = {tensor.name for tensor in file.graph.initializer}
    integers = {name for node in nodes if _on_integers(node) for name in node.output}
    readers: dict[str, list[Any]] = {}
    for node in nodes:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    found = set[str]()
    for node in nodes:
        if _on_integers(node):
            continue
        rounded = all(_on_integers(r) for name in node.output for r in readers.get(name, [node]))
        exact = all(name in integers or name in constants for name in node.input if name)
        if not (rounded and exact):
            found.add(label(node))
    return found


def _on_integers(node: Any) -> bool:
    return str(node.op_type).startswith(("Q", "DequantizeLinear"))
