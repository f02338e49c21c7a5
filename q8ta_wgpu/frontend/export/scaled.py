"""Weights with what belongs to each output, or to each input, multiplied."""

from __future__ import annotations

from torch import Tensor
from torch.fx import Node

from q8ta_wgpu.frontend.nodes import is_transposed, is_weighted, named_arguments


def by_output(node: Node, weight: Tensor, factor: Tensor) -> Tensor:
    """A weight with what belongs to each output multiplied."""
    if is_weighted(node) and is_transposed(node):  # (inputs, outputs / groups, ...), of each group its own outputs
        return _by_group(node, weight, factor)
    return weight * factor.reshape(-1, *(1,) * (weight.dim() - 1))


def by_input(node: Node, weight: Tensor, factor: Tensor) -> Tensor:
    """A weight with what belongs to each input multiplied."""
    if is_transposed(node):
        return weight * factor.reshape(-1, *(1,) * (weight.dim() - 1))
    return _by_group(node, weight, factor)  # (outputs, inputs / groups, ...)


def _by_group(node: Node, weight: Tensor, factor: Tensor) -> Tensor:
    """A weight whose second dimension is that of each group, multiplied along it."""
    groups = named_arguments(node).get("groups", 1)
    by_group = weight.reshape(groups, -1, *weight.shape[1:])
    return (by_group * factor.reshape(groups, 1, -1, *(1,) * (weight.dim() - 2))).reshape(weight.shape)
