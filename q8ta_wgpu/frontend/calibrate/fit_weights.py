"""Rounds the weights of a prepared torch module so that its layers' results change least, for the inputs that they read
in calibration. The rounding itself is q8ta_wgpu/quantization/weight_rounding.py, without torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from q8ta_wgpu.frontend.calibrate.group_observer import PerChannelGroupObserver
from q8ta_wgpu.frontend.calibrate.observer import observer_of
from q8ta_wgpu.frontend.calibrate.watches import unwatch, watch
from q8ta_wgpu.frontend.export.editor import folded, set_constants
from q8ta_wgpu.frontend.nodes import (
    constant,
    convolves,
    is_constant,
    is_transposed,
    is_weighted,
    multiplies,
    named_arguments,
)
from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.quantization import weight_rounding


class Inputs(torch.nn.Module):
    """Observes the input of one layer.

    Args:
        node: the layer's call.
        shape: of its weight.
        coarse: whether the weight has 4 bits.

    Attributes:
        met: statistics of the inputs so far.
    """

    def __init__(self, node: Node, shape: torch.Size, coarse: bool = False) -> None:
        super().__init__()
        arguments = named_arguments(node)
        windowed = not is_transposed(node) and "padding" not in str(node.target)  # padding="same" has no numbers
        defaults, axes = (("stride", 1), ("padding", 0), ("dilation", 1)), len(shape) - 2 if windowed else 0
        stride, padding, dilation = (_each(arguments.get(name, default), axes) for name, default in defaults)
        steps = [(s, (p, p), d) for s, p, d in zip(stride, padding, dilation, strict=True)]
        self.met = weight_rounding.Inputs(shape, steps, arguments.get("groups", 1), windowed, coarse, _TORCH)

    def forward(self, x: Tensor) -> None:
        """Counts a batch."""
        self.met.meet(x.detach().cpu().numpy())


def watch_inputs(model: GraphModule) -> None:
    """Adds an observer of the input to each layer with quantized weights, until `round_weights` removes it."""
    for node in _layers(model):
        x, observed = (named_arguments(node)[name] for name in ("input", "weight"))
        shape = observed.all_input_nodes[0].meta["val"].shape
        coarse = isinstance(observer_of(model, observed), PerChannelGroupObserver)
        watch(model, node, Inputs(node, shape, coarse), (x,), before=node)


@dataclass
class Rounded:
    """The layers that `round_weights` changed, and their weights and biases before."""

    model: GraphModule
    before: list[tuple[Node, Tensor, Tensor | None]] = field(default_factory=list)

    def restore_biases(self) -> None:
        """Restores the biases of all layers."""
        for node, _, bias in self.before:
            changed = constant(self.model, named_arguments(node)["bias"])
            set_constants(self.model, node, {"bias": torch.zeros_like(changed) if bias is None else bias})

    def restore_weights(self) -> None:
        """Restores the weights of all layers."""
        for node, weight, _ in self.before:
            _set_weight(self.model, node, weight)


def round_weights(model: GraphModule) -> Rounded:
    """Rounds the weights of a calibrated model, corrects its biases, and removes the observers of `watch_inputs`."""
    found = Rounded(model)
    for node in _layers(model):
        inputs, arguments = unwatch(model, node).met, named_arguments(node)
        observed, bias = arguments["weight"], arguments.get("bias")
        weight = constant(model, observed.all_input_nodes[0]).detach()
        found.before.append((node, weight, constant(model, bias).detach() if bias else None))
        rounded = _rounded(weight.double(), observer_of(model, observed), inputs.covariance())
        _set_weight(model, node, rounded)
        _correct_bias(model, node, (rounded - weight).float(), torch.from_numpy(inputs.mean), inputs.zeros)
    return found


def _set_weight(model: GraphModule, node: Node, weight: Tensor) -> None:
    """Replaces the weight that a layer's weight observer reads."""
    observer = named_arguments(node)["weight"]
    (before,) = observer.all_input_nodes
    observer.replace_input_with(before, folded(model, node, "weight", weight, before=observer))
    if not before.users:
        model.graph.erase_node(before)


def _rounded(weight: Tensor, observer: Any, covariance: Array | None) -> Tensor:
    """A weight rounded to multiples of its observer's step, in float64."""
    step, *ends = _grid(weight, observer)
    fits = None if observer.ch_axis else covariance
    return torch.from_numpy(weight_rounding.rounded(weight.numpy(), step.numpy(), (ends[0], ends[1]), fits, _TORCH))


def _product(a: Array, b: Array) -> Array:
    return np.asarray(torch.matmul(torch.from_numpy(a), torch.from_numpy(b)).numpy())


def _cholesky(matrices: Array) -> Array:
    return np.asarray(torch.linalg.cholesky(torch.from_numpy(matrices)).numpy())


_TORCH = weight_rounding.Algebra(_product, _cholesky)
"""numpy's threads keep a core busy between products, and on busy cores they make one ten times as slow."""


def _grid(weight: Tensor, observer: Any) -> tuple[Tensor, int, int]:
    """The step of each weight in float64, which may broadcast, and the smallest and largest multiple of it."""
    if isinstance(observer, PerChannelGroupObserver):
        return observer.grid(weight)
    shape = [-1 if i == observer.ch_axis else 1 for i in range(weight.dim())]
    return observer.calculate_qparams()[0].double().reshape(shape), observer.quant_min, observer.quant_max


def _correct_bias(model: GraphModule, node: Node, change: Tensor, mean: Tensor, zeros: bool) -> None:
    """Subtracts from a bias what the change of the weight adds to the results on average.

    Where the input has rows of zeros, a bias of zero stays zero, so that such rows still give zeros. A network may
    divide by the norm of a row, and a small number in place of zero would then be made large.
    """
    arguments = named_arguments(node)
    own = arguments.get("bias")
    added: Tensor = node.target(**{**arguments, "input": mean, "weight": change, "bias": None})  # type: ignore[operator]
    channel = 1 if convolves(node) else added.dim() - 1
    added = added.double().mean([axis for axis in range(added.dim()) if axis != channel])
    bias = constant(model, own).detach().double() if own else torch.zeros_like(added)
    set_constants(model, node, {"bias": torch.where(bias == 0, bias, bias - added) if zeros else bias - added})


def _layers(model: GraphModule) -> Iterator[Node]:
    """The convolutions and linears with constant weight and bias, whose weight an observer with a scale for each
    channel reads."""
    for node in list(model.graph.nodes):
        if node.op != "call_function" or not is_weighted(node) or multiplies(node):
            continue
        arguments = named_arguments(node)
        x, weight, bias = (arguments.get(name) for name in ("input", "weight", "bias"))
        if not isinstance(weight, Node) or not isinstance(x, Node) or node.meta["val"].dim() < 2:
            continue
        if weight.op != "call_module" or not is_constant(weight.all_input_nodes[0]):
            continue
        if hasattr(observer_of(model, weight), "ch_axis") and (bias is None or is_constant(bias)):
            yield node


def _each(value: Any, axes: int) -> list[int]:
    """A number for each axis."""
    return [value] * axes if isinstance(value, int) else [*value] * (axes // len(value))
