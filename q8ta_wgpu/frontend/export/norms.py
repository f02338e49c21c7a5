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
from q8ta_wgpu.frontend.export.scaled import by_output
from q8ta_wgpu.frontend.nodes import (
    constant,
    convolves,
    folds_into,
    is_constant,
    is_weighted,
    named_arguments,
    normalizes,
)


def fold_norms(model: GraphModule) -> None:
    """Multiplies each batch norm that alone reads a convolution or linear of its channels into weight and bias, and
    each number by which alone it is multiplied or divided, or that is added to it: the result is rounded once.

    Every call gets a weight and bias of its own, so that a module applied twice may have a batch norm behind each.
    """
    for norm in list(model.graph.nodes):
        if normalizes(norm) and folds_into(norm, norm.args[0]) and is_known(norm) and is_known(norm.args[0]):
            _fold(model, norm, norm.args[0])
    for node in list(model.graph.nodes):
        _fold_number(model, node)


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
        node.replace_all_uses_with(weighted)
        model.graph.erase_node(node)


_LINES: dict[Any, Callable[[float, float], tuple[float, float]]] = {
    torch.ops.aten.mul.Tensor: lambda number, _: (number, 0.0),
    torch.ops.aten.div.Tensor: lambda number, _: (1 / number if number else math.nan, 0.0),
    torch.ops.aten.add.Tensor: lambda number, alpha: (1.0, alpha * number),
    torch.ops.aten.sub.Tensor: lambda number, alpha: (1.0, -alpha * number),
}
"""Factor and term of a call with a number, and with alpha."""


def _fold_number(model: GraphModule, node: Node) -> None:
    """Puts the factor and the term of a call with a number into the convolution or linear that it alone reads."""
    weighted, number = (*node.args, None, None)[:2]
    if node.target not in _LINES or not isinstance(weighted, Node) or set(weighted.users) != {node}:
        return
    if isinstance(number, Node) and is_constant(number) and number.meta["val"].numel() == 1:
        number = float(constant(model, number))
    if not isinstance(number, (int, float)) or not is_weighted(weighted) or not is_known(weighted):
        return
    factor, term = _LINES[node.target](number, node.kwargs.get("alpha", 1.0))  # type: ignore[arg-type]
    if not (math.isfinite(factor) and math.isfinite(term)) or node.meta["val"].shape != weighted.meta["val"].shape:
        return
    own = tensors_of(model, weighted)
    changed = {name: factor * tensor for name, tensor in own.items() if name in ("weight", "bias")}
    if term:
        outputs = weighted.meta["val"].shape[1 if convolves(weighted) else -1]
        changed["bias"] = changed.get("bias", torch.zeros(outputs, dtype=torch.float64)) + term
    give(model, weighted, changed)
    node.replace_all_uses_with(weighted)
    model.graph.erase_node(node)
