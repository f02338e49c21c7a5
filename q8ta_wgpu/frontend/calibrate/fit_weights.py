"""Rounding weights of a prepared torch module by what its layers read in calibration (calibrate/weights.py)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from q8ta_wgpu.calibrate import weights
from q8ta_wgpu.frontend.calibrate.groups import PerChannelGroupObserver
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


class Inputs(torch.nn.Module):
    """What a layer reads in calibration: `met`, of the layer's call and its weight's shape."""

    def __init__(self, node: Node, shape: torch.Size, coarse: bool = False) -> None:
        super().__init__()
        arguments = named_arguments(node)
        told = not is_transposed(node) and "padding" not in str(node.target)  # which "same" names
        given, axes = (("stride", 1), ("padding", 0), ("dilation", 1)), len(shape) - 2 if told else 0
        stride, padding, dilation = (_each(arguments.get(name, start), axes) for name, start in given)
        steps = [(s, (p, p), d) for s, p, d in zip(stride, padding, dilation, strict=True)]
        self.met = weights.Inputs(shape, steps, arguments.get("groups", 1), told, coarse)

    def forward(self, x: Tensor) -> None:
        """Counts a batch."""
        self.met.meet(x.detach().cpu().numpy())


def watch_inputs(model: GraphModule) -> None:
    """Lets a prepared model note what its layers with quantized weights read."""
    for node in _layers(model):
        x, observed = (named_arguments(node)[name] for name in ("input", "weight"))
        shape = observed.all_input_nodes[0].meta["val"].shape
        coarse = isinstance(observer_of(model, observed), PerChannelGroupObserver)
        watch(model, node, Inputs(node, shape, coarse), (x,), before=node)


@dataclass
class Rounded:
    """Layers whose weights and biases were changed, with what they had."""

    model: GraphModule
    before: list[tuple[Node, Tensor, Tensor | None]] = field(default_factory=list)

    def restore_biases(self) -> None:
        """Gives every layer the bias that it had."""
        for node, _, bias in self.before:
            changed = constant(self.model, named_arguments(node)["bias"])
            set_constants(self.model, node, {"bias": torch.zeros_like(changed) if bias is None else bias})

    def restore_weights(self) -> None:
        """Gives every layer the weight that it had."""
        for node, weight, _ in self.before:
            _set_weight(self.model, node, weight)


def round_weights(model: GraphModule) -> Rounded:
    """Changes the weights and biases of a model that was watched and calibrated, and ends the watch."""
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
    """Gives an observer another weight to read."""
    observer = named_arguments(node)["weight"]
    (given,) = observer.all_input_nodes
    observer.replace_input_with(given, folded(model, node, "weight", weight, before=observer))
    if not given.users:
        model.graph.erase_node(given)


def _rounded(weight: Tensor, observer: Any, covariance: Array | None) -> Tensor:
    """A weight on the steps of its observer, in float64."""
    step, *ends = _grid(weight, observer)
    fits = None if observer.ch_axis else covariance
    return torch.from_numpy(weights.rounded(weight.numpy(), step.numpy(), (ends[0], ends[1]), fits, _cholesky))


def _cholesky(matrices: Array) -> Array:
    """numpy's, by torch: numpy's threads wait for each other, which takes ten times as long where cores are busy."""
    return np.asarray(torch.linalg.cholesky(torch.from_numpy(matrices)).numpy())


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
    set_constants(model, node, {"bias": torch.where(bias == 0, bias, bias - moved) if zeros else bias - moved})


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
        if hasattr(observer_of(model, weight), "ch_axis") and (bias is None or is_constant(bias)):
            yield node


def _each(value: Any, axes: int) -> list[int]:
    """A number for each axis."""
    return [value] * axes if isinstance(value, int) else [*value] * (axes // len(value))
