"""Converts a torch module to an ncnn network: float32, or int8 as ncnn's own tools do it (ncnn2table, ncnn2int8).

It supports the layers of the benchmarked networks: convolution with folded batch norm, depthwise convolution, ReLU and
ReLU6, add, max and global average pooling, flatten, linear, pixel_shuffle. Weights are symmetric int8 with one scale
for each output channel, activations symmetric int8 with one scale for each tensor: 127 over the largest magnitude of
the calibration input. ncnn keeps a convolution's result in int8 if only convolutions read it (ncnn2int8's
`fuse_requantize`), otherwise in the storage type of its options.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.optimization import fuse

MAGIC = 7767517
REQUANTIZE = 100
"""Added to ncnn's int8_scale_term to keep the result in int8, at the scale of its readers."""


@dataclass
class _Layer:
    """A line of the .param file, and the layer's weights in the .bin file.

    Attributes:
        module: the convolution or linear layer that has the weights.
        parameters: ncnn's numbered parameters.
        source: name of the operand, whose range determines its scale.
    """

    kind: str
    inputs: list[str]
    output: str
    parameters: dict[int, int | float | list[float]] = field(default_factory=dict)
    module: nn.Module | None = None
    source: str = ""


class _Ranges(fx.Interpreter):
    """Records the largest magnitude of every value."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.found: dict[str, float] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, Tensor):
            self.found[n.name] = float(result.abs().max())
        return result


def convert(module: nn.Module, x: Tensor, int8: bool) -> tuple[str, bytes]:
    """The .param text and the .bin bytes of a float32 module in eval mode, calibrated on `x`.

    Raises NotImplementedError for an unsupported layer.
    """
    traced = fx.symbolic_trace(fuse(module))
    ranges = _Ranges(traced)
    with torch.no_grad():
        ranges.run(x)
    layers = _fused(list(_layers(traced)))
    scales = {name: 127 / max(top, 1e-6) for name, top in ranges.found.items()}
    int8_results = _stays_int8(layers) if int8 else set()
    data = b"".join(_weights(layer, scales, int8, layer.output in int8_results) for layer in layers)
    return _text(_split(layers)), data


def _layers(traced: fx.GraphModule) -> Iterator[_Layer]:
    modules = dict(traced.named_modules())
    for node in traced.graph.nodes:
        inputs = [i.name for i in node.all_input_nodes]
        if node.op == "placeholder":
            yield _Layer("Input", [], node.name)
        elif node.op == "call_module":
            yield _module_layer(modules[str(node.target)], inputs, node.name)
        elif node.op == "call_function" and node.target is operator.add:
            yield _Layer("BinaryOp", inputs, node.name, {0: 0})
        elif node.op != "output":
            raise NotImplementedError(f"{node.op} {node.target} has no ncnn layer here")


def _module_layer(module: nn.Module, inputs: list[str], name: str) -> _Layer:
    match module:
        case nn.Conv2d():
            return _convolution(module, inputs, name)
        case nn.Linear():
            parameters: dict[int, Any] = {0: module.out_features, 1: 1, 2: module.weight.numel()}
            return _Layer("InnerProduct", inputs, name, parameters, module, inputs[0])
        case nn.ReLU():
            return _Layer("ReLU", inputs, name)
        case nn.ReLU6():
            return _Layer("Clip", inputs, name, {0: 0.0, 1: 6.0})
        case nn.MaxPool2d():
            window, step, padding = (int(n) for n in (module.kernel_size, module.stride, module.padding))  # type: ignore[arg-type, unused-ignore]
            # Pad mode 1: the padding as it is, and no window beyond it.
            return _Layer("Pooling", inputs, name, {0: 0, 1: window, 2: step, 3: padding, 5: 1})
        case nn.AdaptiveAvgPool2d():
            return _Layer("Pooling", inputs, name, {0: 1, 4: 1})
        case nn.Flatten() | nn.Identity() | nn.Dropout():
            return _Layer("Noop", inputs, name)
        case nn.PixelShuffle():
            return _Layer("PixelShuffle", inputs, name, {0: module.upscale_factor})
    raise NotImplementedError(f"{type(module).__name__} has no ncnn layer here")


def _convolution(conv: nn.Conv2d, inputs: list[str], name: str) -> _Layer:
    assert not isinstance(conv.padding, str)
    kernel, stride, padding = conv.kernel_size[0], conv.stride[0], conv.padding[0]
    parameters: dict[int, Any] = {0: conv.out_channels, 1: kernel, 3: stride, 4: padding, 5: 1, 6: conv.weight.numel()}
    if conv.groups == 1:
        return _Layer("Convolution", inputs, name, parameters, conv, inputs[0])
    return _Layer("ConvolutionDepthWise", inputs, name, {**parameters, 7: conv.groups}, conv, inputs[0])


def _readers(layers: Sequence[_Layer]) -> dict[str, list[_Layer]]:
    return {layer.output: [other for other in layers if layer.output in other.inputs] for layer in layers}


def _fused(layers: list[_Layer]) -> list[_Layer]:
    """Fuses activations into the convolution before them, as ncnnoptimize does, and removes no-ops."""
    readers, producers = _readers(layers), {layer.output: layer for layer in layers}
    renamed: dict[str, str] = {}
    remaining: list[_Layer] = []
    for layer in layers:
        layer.inputs = [renamed.get(name, name) for name in layer.inputs]
        before = producers.get(layer.inputs[0]) if layer.inputs else None
        if layer.kind == "Noop":
            renamed[layer.output] = layer.inputs[0]
        elif layer.kind in ("ReLU", "Clip") and before and before.module and len(readers[before.output]) == 1:
            before.parameters[9] = 1 if layer.kind == "ReLU" else 3
            if layer.kind == "Clip":
                before.parameters[10] = [0.0, 6.0]
            renamed[layer.output] = before.output
            before.output = layer.output
            renamed.pop(layer.output)
            producers[layer.output] = before
        else:
            remaining.append(layer)
    return remaining


def _stays_int8(layers: list[_Layer]) -> set[str]:
    """Names of results that only convolutions read, which are kept in int8."""
    convolutions = ("Convolution", "ConvolutionDepthWise")
    readers = _readers(layers)
    return {
        layer.output
        for layer in layers
        if layer.kind in convolutions
        and readers[layer.output]
        and all(reader.kind in convolutions for reader in readers[layer.output])
    }


def _weights(layer: _Layer, scales: dict[str, float], int8: bool, stays: bool) -> bytes:
    """The layer's bytes in the .bin file. Weights are float32; ncnn quantizes them by the scales when it loads."""
    module = layer.module
    if not isinstance(module, nn.Conv2d | nn.Linear):
        return b""
    weight = module.weight.detach().numpy()
    bias = np.zeros(len(weight), np.float32) if module.bias is None else module.bias.detach().numpy()
    arrays = [np.zeros(1, np.float32), weight, bias]  # a zero word means that the weights follow unpacked
    if int8:
        layer.parameters[8] = (1 if layer.kind == "ConvolutionDepthWise" else 2) + (REQUANTIZE if stays else 0)
        largest = np.abs(weight.reshape(len(weight), -1)).max(1)
        arrays += [127 / np.maximum(largest, 1e-12), np.array([scales[layer.source]])]
        if stays:
            arrays.append(np.array([scales[layer.output]]))
    return b"".join(np.ascontiguousarray(part, np.float32).tobytes() for part in arrays)


def _split(layers: list[_Layer]) -> list[_Layer]:
    """Inserts a Split after each value with several readers, since an ncnn value has only one."""
    readers = _readers(layers)
    found: list[_Layer] = []
    for layer in layers:
        found.append(layer)
        uses = [
            (reader, i) for reader in readers[layer.output] for i, n in enumerate(reader.inputs) if n == layer.output
        ]
        if len(uses) > 1:
            names = [f"{layer.output}_{i}" for i in range(len(uses))]
            for (reader, i), name in zip(uses, names, strict=True):
                reader.inputs[i] = name
            found.append(_Layer("Split", [layer.output], " ".join(names)))
    return found


def _text(layers: list[_Layer]) -> str:
    lines = []
    for i, layer in enumerate(layers):
        outputs = layer.output.split()
        head = [layer.kind, f"layer{i}", str(len(layer.inputs)), str(len(outputs)), *layer.inputs, *outputs]
        lines.append(" ".join([*head, *(_parameter(key, v) for key, v in sorted(layer.parameters.items()))]))
    blobs = sum(len(layer.output.split()) for layer in layers)
    return "\n".join([str(MAGIC), f"{len(layers)} {blobs}", *lines, ""])


def _parameter(key: int, value: int | float | list[float]) -> str:
    if isinstance(value, list):
        return f"-{23300 + key}={len(value)},{','.join(f'{v:e}' for v in value)}"
    return f"{key}={value:e}" if isinstance(value, float) else f"{key}={value}"
