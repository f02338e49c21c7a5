"""Batch norms and numbers behind convolutions and linears of a float program: folded where that is right, before PT2E
looks at it, kept as they are elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from q8ta_wgpu.frontend.export.editor import give, tensors_of
from q8ta_wgpu.frontend.moves import along, moved, moves, places_along
from q8ta_wgpu.frontend.nodes import (
    constant,
    convolves,
    is_constant,
    is_transposed,
    is_weighted,
    named_arguments,
    normalizes,
    sizes_of,
)


def fold_norms(model: GraphModule) -> None:
    """Multiplies each batch norm that alone reads a convolution or linear of its channels, wherever elements are moved
    in between, into weight and bias, and each number, or number for each output, by which alone it is multiplied or
    divided, or that is added to it: the result is rounded once.

    Every call gets a weight and bias of its own, so that a module applied twice may have a batch norm behind each.
    """
    for norm in list(model.graph.nodes):
        weighted = _sum_before(norm) if normalizes(norm) and is_known(norm) else None
        if weighted is not None:
            _fold(model, norm, weighted)
    for node in list(model.graph.nodes):
        _fold_numbers(model, node)


def _sum_before(norm: Node) -> Node | None:
    """The convolution or linear whose outputs are the channels of a batch norm, which alone reads it; what is in
    between moves elements. A linear's outputs are its last dimension, a batch norm's channels dimension 1."""
    weighted, reader, between = norm.args[0], norm, list[Node]()
    while isinstance(weighted, Node) and set(weighted.users) == {reader} and moves(weighted):
        between.append(reader := weighted)
        weighted = weighted.args[0]
    if not isinstance(weighted, Node) or set(weighted.users) != {reader}:
        return None
    if not is_weighted(weighted) or not is_known(weighted):
        return None
    shape, axis = sizes_of(weighted), _channel(weighted)
    value, places = weighted, places_along(shape, axis)
    for call in reversed(between):
        ((value, places),) = moved(call, value, places)
    found = along(places, 1)
    return weighted if found is not None and torch.equal(found, torch.arange(1.0, shape[axis] + 1)) else None


def is_known(node: Node) -> bool:
    """Whether what a convolution, linear or batch norm needs is there and all of it constant."""
    arguments = named_arguments(node)
    required = ("running_mean", "running_var") if normalizes(node) else ("weight",)
    given = [arguments.get(name) for name in ("weight", "bias", "running_mean", "running_var")]
    constant = all(value is None or (isinstance(value, Node) and is_constant(value)) for value in given)
    return constant and not arguments.get("training") and all(arguments.get(name) for name in required)


def _fold(model: GraphModule, norm: Node, weighted: Node) -> None:
    own, affine = tensors_of(model, weighted), tensors_of(model, norm)
    factor = affine.get("weight", 1.0) / torch.sqrt(affine["running_var"] + named_arguments(norm)["eps"])
    bias = affine.get("bias", 0.0) + (own.get("bias", 0.0) - affine["running_mean"]) * factor
    give(model, weighted, {"weight": by_output(weighted, own["weight"], factor), "bias": bias})
    results = [] if isinstance(norm.meta["val"], Tensor) else list(norm.users)
    for node in (*results, norm):  # of a batch norm with several results only the first has readers
        node.replace_all_uses_with(norm.all_input_nodes[0])
        model.graph.erase_node(node)


Numbers = float | Tensor

_LINES: dict[Any, Callable[[Numbers, float], tuple[Numbers, Numbers]]] = {
    torch.ops.aten.mul.Tensor: lambda numbers, _: (numbers, 0.0),
    torch.ops.aten.div.Tensor: lambda numbers, _: (1 / numbers if torch.as_tensor(numbers).all() else math.nan, 0.0),
    torch.ops.aten.add.Tensor: lambda numbers, alpha: (1.0, alpha * numbers),
    torch.ops.aten.sub.Tensor: lambda numbers, alpha: (1.0, -alpha * numbers),
}
"""Factor and term of a call with a number, or with one for each output, and with alpha."""

_COMMUTE = (torch.ops.aten.mul.Tensor, torch.ops.aten.add.Tensor)


def _fold_numbers(model: GraphModule, node: Node) -> None:
    """Puts the factors and the terms of a call with numbers into the convolution or linear that it alone reads."""
    weighted, given = (*node.args, None, None)[:2]
    if node.target in _COMMUTE and not node.kwargs and isinstance(given, Node) and is_weighted(given):
        weighted, given = given, weighted
    if node.target not in _LINES or not isinstance(weighted, Node) or set(weighted.users) != {node}:
        return
    if not is_weighted(weighted) or not is_known(weighted) or node.meta["val"].shape != weighted.meta["val"].shape:
        return
    numbers = _numbers(model, weighted, given)
    if numbers is None:
        return
    factor, term = map(torch.as_tensor, _LINES[node.target](numbers, node.kwargs.get("alpha", 1.0)))  # type: ignore[arg-type]
    if not (factor.isfinite().all() and term.isfinite().all()):
        return
    own, outputs = tensors_of(model, weighted), weighted.meta["val"].shape[_channel(weighted)]
    factor, term = (x.double().expand(outputs) for x in (factor, term))
    changed = {"weight": by_output(weighted, own["weight"], factor)}
    if "bias" in own or term.any():
        changed["bias"] = own.get("bias", 0.0) * factor + term
    give(model, weighted, changed)
    node.replace_all_uses_with(weighted)
    model.graph.erase_node(node)


def _numbers(model: GraphModule, weighted: Node, given: Any) -> Numbers | None:
    """A number, or constants of which each output of a convolution or linear has one; None of anything else."""
    if not isinstance(given, Node):
        return given if isinstance(given, (int, float)) else None
    if not is_constant(given):
        return None
    found, shape = constant(model, given).detach().double(), weighted.meta["val"].shape
    if found.numel() == 1:
        return float(found)
    along = [1] * len(shape)
    along[_channel(weighted)] = shape[_channel(weighted)]
    return found.flatten() if [1] * (len(shape) - found.dim()) + [*found.shape] == along else None


def _channel(weighted: Node) -> int:
    return 1 if convolves(weighted) else len(weighted.meta["val"].shape) - 1


def by_output(node: Node, weight: Tensor, factor: Tensor) -> Tensor:
    """A weight, multiplied by a number for each output."""
    if is_weighted(node) and is_transposed(node):  # (inputs, outputs / groups, ...), of each group its own outputs
        return _by_group(node, weight, factor)
    return weight * factor.reshape(-1, *(1,) * (weight.dim() - 1))


def by_input(node: Node, weight: Tensor, factor: Tensor) -> Tensor:
    """A weight, multiplied by a number for each input."""
    if is_transposed(node):
        return weight * factor.reshape(-1, *(1,) * (weight.dim() - 1))
    return _by_group(node, weight, factor)  # (outputs, inputs / groups, ...)


def _by_group(node: Node, weight: Tensor, factor: Tensor) -> Tensor:
    """A weight whose second dimension is that of each group, multiplied along it."""
    groups = named_arguments(node).get("groups", 1)
    by_group = weight.reshape(groups, -1, *weight.shape[1:])
    return (by_group * factor.reshape(groups, 1, -1, *(1,) * (weight.dim() - 2))).reshape(weight.shape)
