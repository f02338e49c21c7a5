"""Rounding weights by what calibration met at a layer's inputs: what is lost in one weight others take over.

Neighbouring pixels and channels vary together, so that what rounding changes in the weight of one can be made up for in
the weights that follow it: each error is spread over the later ones as the inputs' covariance says (Frantar et al.,
GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers, 2022). What is left on average is
taken out of the bias: inputs have means far from zero, and depthwise layers few taps, so that errors move every output
of a channel (Nagel et al., Data-Free Quantization Through Weight Equalization and Bias Correction, 2019).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from q8ta_wgpu.frontend.calibrate.groups import PerChannelGroupObserver
from q8ta_wgpu.frontend.export.editor import folded, give
from q8ta_wgpu.frontend.nodes import (
    constant,
    convolves,
    is_constant,
    is_transposed,
    is_weighted,
    multiplies,
    named_arguments,
)

_LARGEST, _LARGEST_OF_4_BITS = 512, 2048
"""Inputs of one output up to which they are told apart: the time it takes grows with the square. 4 bits gain more."""

_SAMPLES = 4
"""Samples for each input that a covariance needs, and that a call of the network gives."""

_LEAST = 512
"""Samples that a call gives, where it has them, however few the inputs."""

_CALLS = 4
"""Calls whose samples suffice."""

_DAMPING = 0.01
"""Of the mean variance, added to every input's: what calibration met is not all there is."""

_LOST = 1e-9
"""Of the mean square, added to every variance: what float64 loses where inputs hardly vary beside their mean."""

_GOLDEN = 0.6180339887498949
"""The golden ratio without its whole: of all steps around a circle the one that spreads its places best."""

_BLOCK = 64
"""Inputs whose errors are taken over by those behind the block at once, as one product."""


class Inputs(torch.nn.Module):
    """What a layer reads in calibration.

    Attributes:
        mean: of the input over the first dimension, which stays as 1; each call counts the same.
        samples: how often the inputs of one output were met, of which `total` is the sum and `products` that of their
            products: (groups, inputs) and (groups, inputs, inputs).
        zeros: whether a linear met rows of zeros, such as padding.
        coarse: whether the weight has 4 bits, which gain from few samples, and from those of every call.
    """

    def __init__(self, node: Node, shape: torch.Size, coarse: bool = False) -> None:
        super().__init__()
        arguments = named_arguments(node)
        self.shape, self.groups, self.size = shape, arguments.get("groups", 1), shape[1:].numel()
        starts = (("stride", 1), ("padding", 0), ("dilation", 1))
        self.steps = [_each(arguments.get(name, start), len(shape) - 2) for name, start in starts]
        largest = _LARGEST_OF_4_BITS if coarse else _LARGEST
        self.told = self.size <= largest and not is_transposed(node) and "padding" not in str(node.target)
        self.calls = self.samples = 0
        self.coarse = coarse
        self.zeros = False
        self.mean: Tensor | None = None
        self.total: Any = 0.0
        self.products: Any = 0.0

    def forward(self, x: Tensor) -> None:
        """Counts a batch."""
        self.calls += 1
        x = x.detach()
        mean = x.mean(0, keepdim=True)
        self.mean = mean if self.mean is None else self.mean + (mean - self.mean) / self.calls
        if len(self.shape) == 2 and self.calls <= _CALLS:
            self.zeros = self.zeros or not bool(x.any(-1).all())
        if self.told and (self.calls <= _CALLS or (self.coarse and self.samples < _SAMPLES * self.size)):
            rows = self._rows(x, max(_SAMPLES * self.size, _LEAST)).double()
            self.samples += rows.shape[1]
            self.total = self.total + rows.sum(1)
            self.products = self.products + rows.mT @ rows

    def covariance(self) -> Tensor | None:
        """Of the inputs of one output, (groups, inputs, inputs) in float64; None where too few were met."""
        if not self.samples or self.samples < (1 if self.coarse else _SAMPLES) * self.size:
            return None
        mean, squares = self.total / self.samples, self.products / self.samples
        lost = _LOST * squares.diagonal(dim1=1, dim2=2).mean(1)
        added = lost[:, None, None] * torch.eye(self.size, dtype=torch.float64)
        covariance: Tensor = squares - mean[:, :, None] * mean[:, None, :] + added
        return covariance

    def _rows(self, x: Tensor, most: int) -> Tensor:
        """The inputs of outputs that are spread evenly over a batch, at most `most`: (groups, samples, inputs)."""
        if len(self.shape) == 2:
            return _spread(x.flatten(0, -2), most)[None]
        axes, (stride, padding, dilation) = len(self.shape) - 2, self.steps
        x = torch.nn.functional.pad(x, [end for end in reversed(padding) for _ in range(2)])
        for axis, (kernel, step, apart) in enumerate(zip(self.shape[2:], stride, dilation, strict=True), start=2):
            x = x.unfold(axis, apart * (kernel - 1) + 1, step)[..., ::apart]
        x = x.movedim(1, 1 + axes)
        outputs = x.shape[: 1 + axes]
        x = x[torch.unravel_index(_spread(torch.arange(outputs.numel()), most), outputs)]
        return x.reshape(len(x), self.groups, self.size).transpose(0, 1)


def _spread(rows: Tensor, most: int) -> Tensor:
    """As many rows, spread evenly. Even steps may be those from a token or pixel of one input to that of the next, and
    meet no other; steps of the golden ratio, back at the start behind the end, have no such period (Weyl, 1916)."""
    if len(rows) <= most:
        return rows
    places = torch.arange(1, most + 1, dtype=torch.float64) * _GOLDEN % 1.0
    return rows[(places * len(rows)).long()]


def watch_inputs(model: GraphModule) -> None:
    """Lets a prepared model note what its layers with quantized weights read."""
    for node in _layers(model):
        weight = named_arguments(node)["weight"].all_input_nodes[0].meta["val"]
        with model.graph.inserting_before(node):
            name = f"_inputs_of_{node.name}"
            observer = model.get_submodule(str(named_arguments(node)["weight"].target))
            coarse = isinstance(observer, PerChannelGroupObserver)
            model.add_submodule(name, Inputs(node, weight.shape, coarse))
            model.graph.call_module(name, (named_arguments(node)["input"],))


@dataclass
class Rounded:
    """Layers whose weights and biases were changed, with what they had."""

    model: GraphModule
    before: list[tuple[Node, Tensor, Tensor | None]] = field(default_factory=list)

    def restore_biases(self) -> None:
        """Gives every layer the bias that it had."""
        for node, _, bias in self.before:
            changed = constant(self.model, named_arguments(node)["bias"])
            give(self.model, node, {"bias": torch.zeros_like(changed) if bias is None else bias})

    def restore_weights(self) -> None:
        """Gives every layer the weight that it had."""
        for node, weight, _ in self.before:
            _set_weight(self.model, node, weight)


def round_weights(model: GraphModule) -> Rounded:
    """Changes the weights and biases of a model that was watched and calibrated, and ends the watch."""
    found = Rounded(model)
    for node in _layers(model):
        arguments = named_arguments(node)
        watch: Node = next(user for user in arguments["input"].users if user.target == f"_inputs_of_{node.name}")
        inputs: Any = model.get_submodule(str(watch.target))
        model.graph.erase_node(watch)
        model.delete_submodule(str(watch.target))
        observer, bias = arguments["weight"], arguments.get("bias")
        weight = constant(model, observer.all_input_nodes[0]).detach()
        found.before.append((node, weight, constant(model, bias).detach() if bias else None))
        rounded = _rounded(weight.double(), model.get_submodule(str(observer.target)), inputs.covariance())
        _set_weight(model, node, rounded)
        _correct_bias(model, node, (rounded - weight).float(), inputs.mean, inputs.zeros)
    return found


def _set_weight(model: GraphModule, node: Node, weight: Tensor) -> None:
    """Lets an observer watch another weight."""
    observer = named_arguments(node)["weight"]
    (given,) = observer.all_input_nodes
    observer.replace_input_with(given, folded(model, node, "weight", weight, before=observer))
    if not given.users:
        model.graph.erase_node(given)


def _rounded(weight: Tensor, observer: Any, covariance: Tensor | None) -> Tensor:
    """A weight on the steps of its observer, in float64: input after input, each error taken over by those behind it,
    as far as they vary together; without a covariance each on the nearest."""
    scale, *ends = _grid(weight, observer)
    if covariance is None or observer.ch_axis:
        nearest: Tensor = torch.clamp(torch.round(weight / scale), *ends) * scale
        return nearest
    groups, size = covariance.shape[:2]
    scale = scale.expand_as(weight).reshape(groups, -1, size).mT
    left = weight.reshape(groups, -1, size).mT.clone(memory_format=torch.contiguous_format)
    variance = covariance.diagonal(dim1=1, dim2=2).mean(1).clamp(min=1e-12)
    damped = covariance + _DAMPING * variance[:, None, None] * torch.eye(size, dtype=torch.float64)
    factor = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(damped)), upper=True)
    errors = torch.zeros_like(left)
    for first in range(0, size, _BLOCK):
        last = min(first + _BLOCK, size)
        for i in range(first, last):
            nearest = torch.clamp(torch.round(left[:, i] / scale[:, i]), *ends) * scale[:, i]
            errors[:, i] = (left[:, i] - nearest) / factor[:, i, i, None]
            left[:, i + 1 : last] -= factor[:, i, i + 1 : last, None] * errors[:, i, None]
            left[:, i] = nearest
        left[:, last:] -= factor[:, first:last, last:].mT @ errors[:, first:last]
    rounded: Tensor = left.mT.reshape(weight.shape)
    return rounded


def _grid(weight: Tensor, observer: Any) -> tuple[Tensor, int, int]:
    """The step of each weight, or of each output's, in float64, and the smallest and largest number of steps."""
    if isinstance(observer, PerChannelGroupObserver):
        return observer.grid(weight)
    shape = [-1 if i == observer.ch_axis else 1 for i in range(weight.dim())]
    return observer.calculate_qparams()[0].double().reshape(shape), observer.quant_min, observer.quant_max


def _correct_bias(model: GraphModule, node: Node, change: Tensor, mean: Tensor, zeros: bool) -> None:
    """Takes out of a bias what a change of the weight changes on average. Where the input has rows of zeros, an output
    without a bias stays zero for them: a network may divide by its norm."""
    arguments = named_arguments(node)
    given = arguments.get("bias")
    moved: Tensor = node.target(**{**arguments, "input": mean, "weight": change, "bias": None})  # type: ignore[operator]
    channel = 1 if convolves(node) else moved.dim() - 1
    moved = moved.double().mean([axis for axis in range(moved.dim()) if axis != channel])
    bias = constant(model, given).detach().double() if given else torch.zeros_like(moved)
    give(model, node, {"bias": torch.where(bias == 0, bias, bias - moved) if zeros else bias - moved})


def _layers(model: GraphModule) -> Iterator[Node]:
    """The convolutions and linears of a prepared model whose weight an observer by channel reads, which is a
    parameter as their bias is."""
    for node in list(model.graph.nodes):
        if node.op != "call_function" or not is_weighted(node) or multiplies(node):
            continue
        arguments = named_arguments(node)
        x, weight, bias = (arguments.get(name) for name in ("input", "weight", "bias"))
        if not isinstance(weight, Node) or not isinstance(x, Node) or node.meta["val"].dim() < 2:
            continue
        if weight.op != "call_module" or not is_constant(weight.all_input_nodes[0]):
            continue
        observer = model.get_submodule(str(weight.target))
        if hasattr(observer, "ch_axis") and (bias is None or is_constant(bias)):
            yield node


def _each(value: Any, axes: int) -> list[int]:
    """A number for each axis."""
    return [value] * axes if isinstance(value, int) else [*value] * (axes // len(value))
