"""Bias correction: what rounding a layer's weights changes on average is taken out of its bias.

Inputs have means far from zero, and depthwise layers few taps, so that the errors of rounded weights do not cancel:
they move every output of a channel. Nagel et al., Data-Free Quantization Through Weight Equalization and Bias
Correction, 2019; the means of the inputs are those of calibration.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from q8ta_wgpu.frontend.nodes import is_constant, is_weighted, multiplies, named_arguments
from q8ta_wgpu.frontend.norms import new_constant, tensor_of


class Mean(torch.nn.Module):
    """The mean of what it is called with over the first dimension, which stays as 1; each call counts the same."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.value: Tensor | None = None

    def forward(self, x: Tensor) -> None:
        """Counts a batch."""
        self.calls += 1
        mean = x.detach().mean(0, keepdim=True)
        self.value = mean if self.value is None else self.value + (mean - self.value) / self.calls


def watch_means(model: GraphModule) -> None:
    """Lets a prepared model take the mean of what its layers with quantized weights read."""
    for node in _layers(model):
        with model.graph.inserting_before(node):
            name = f"_mean_of_{node.name}"
            model.add_submodule(name, Mean())
            model.graph.call_module(name, (named_arguments(node)["input"],))
    model.recompile()


def correct_biases(model: GraphModule) -> None:
    """Changes the biases of a model that was watched and calibrated, and ends the watch."""
    for node in _layers(model):
        arguments = named_arguments(node)
        watch: Node = next(user for user in arguments["input"].users if user.target == f"_mean_of_{node.name}")
        mean = model.get_submodule(str(watch.target)).value
        model.graph.erase_node(watch)
        model.delete_submodule(str(watch.target))
        change, bias = _change(model, arguments["weight"]), arguments.get("bias")
        moved: Tensor = node.target(**{**arguments, "input": mean, "weight": change, "bias": None})  # type: ignore[operator]
        channel = 1 if "groups" in _names(node) else moved.dim() - 1
        moved = moved.double().mean([axis for axis in range(moved.dim()) if axis != channel])
        with model.graph.inserting_before(node):
            corrected = new_constant(model, node, "bias", (tensor_of(model, bias) if bias else 0.0) - moved)
        node.args = (*node.args[:2], corrected, *node.args[3:])
        node.kwargs = {name: value for name, value in node.kwargs.items() if name != "bias"}
        if bias and not bias.users:
            model.graph.erase_node(bias)
    model.recompile()


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


def _names(node: Node) -> set[str]:
    return {argument.name for argument in node.target._schema.arguments}  # type: ignore[union-attr]


def _change(model: GraphModule, node: Node) -> Tensor:
    """The weight as its observer will round it, less the weight itself."""
    observer: Any = model.get_submodule(str(node.target))
    weight = tensor_of(model, node.all_input_nodes[0], torch.float32)
    scale, zero = observer.calculate_qparams()
    ends = observer.quant_min, observer.quant_max
    return torch.fake_quantize_per_channel_affine(weight, scale, zero.int(), observer.ch_axis, *ends) - weight
