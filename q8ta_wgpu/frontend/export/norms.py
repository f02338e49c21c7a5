"""Folds batch norms, constant factors and terms into the convolutions and linears before them, where that is correct.
PT2E would fold some of them wrongly. Batch norms behind a cat are moved to its inputs first.

The result of a cat has one scale, the coarsest of its inputs', and a batch norm behind it rounds again. A norm of each
input is instead fused into the convolution before it, and rounds once. An input that is not a convolution's keeps its
own scale up to its norm.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from q8ta_wgpu.frontend.export.editor import call, folded, set_constants, tensors_of
from q8ta_wgpu.frontend.moves import along, indices_along, moved, moves
from q8ta_wgpu.frontend.nodes import (
    argument_names,
    constant,
    convolves,
    has_channels,
    is_constant,
    is_transposed,
    is_weighted,
    joins,
    named_arguments,
    normalizes,
    sizes_of,
)
from q8ta_wgpu.ir.int8 import is_mask


def fold_norms(model: GraphModule) -> None:
    """Folds batch norms and numbers into weight and bias, so that the result is rounded once. A batch norm must be the
    only reader of a convolution or linear, and its channels the outputs; calls that move elements may be between them.
    A number, or one for each output, must be the only factor, divisor or term.

    Every call gets a weight and bias of its own, so that a module that is applied twice may have a batch norm behind
    each.
    """
    for norm in list(model.graph.nodes):
        weighted = _sum_before(norm) if normalizes(norm) and is_known(norm) else None
        if weighted is not None:
            _fold(model, norm, weighted)
    for node in list(model.graph.nodes):
        _fold_numbers(model, node)


def _sum_before(norm: Node) -> Node | None:
    """The convolution or linear whose outputs are the channels of a batch norm, its only reader. Calls that move
    elements may be between them. A linear's outputs are its last dimension, a batch norm's channels dimension 1."""
    weighted, reader, between = norm.args[0], norm, list[Node]()
    while isinstance(weighted, Node) and set(weighted.users) == {reader} and moves(weighted):
        between.append(reader := weighted)
        weighted = weighted.args[0]
    if not isinstance(weighted, Node) or set(weighted.users) != {reader}:
        return None
    if not is_weighted(weighted) or not is_known(weighted):
        return None
    shape, axis = sizes_of(weighted), _channel(weighted)
    value, axes = weighted, indices_along(shape, axis)
    for each in reversed(between):
        ((value, axes),) = moved(each, value, axes)
    found = along(axes, 1)
    return weighted if found is not None and torch.equal(found, torch.arange(1.0, shape[axis] + 1)) else None


def is_known(node: Node) -> bool:
    """Whether the parameters of a convolution, linear or batch norm are present and constant."""
    arguments = named_arguments(node)
    required = ("running_mean", "running_var") if normalizes(node) else ("weight",)
    parameters = [arguments.get(name) for name in ("weight", "bias", "running_mean", "running_var")]
    constant = all(value is None or (isinstance(value, Node) and is_constant(value)) for value in parameters)
    return constant and not arguments.get("training") and all(arguments.get(name) for name in required)


def _fold(model: GraphModule, norm: Node, weighted: Node) -> None:
    own, affine = tensors_of(model, weighted), tensors_of(model, norm)
    factor = affine.get("weight", 1.0) / torch.sqrt(affine["running_var"] + named_arguments(norm)["eps"])
    bias = affine.get("bias", 0.0) + (own.get("bias", 0.0) - affine["running_mean"]) * factor
    set_constants(model, weighted, {"weight": by_output(weighted, own["weight"], factor), "bias": bias}, norm)
    results = [] if isinstance(norm.meta["val"], Tensor) else list(norm.users)
    for node in (*results, norm):  # only the first of a batch norm's results has readers
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
    """Folds the factors and terms of a call with numbers into the convolution or linear before it, whose only reader it
    is. A mask is left: as a bias it would be rounded with the scores."""
    weighted, operand = (*node.args, None, None)[:2]
    if node.target in _COMMUTE and not node.kwargs and isinstance(operand, Node) and is_weighted(operand):
        weighted, operand = operand, weighted
    if node.target not in _LINES or not isinstance(weighted, Node) or set(weighted.users) != {node}:
        return
    if not is_weighted(weighted) or not is_known(weighted) or node.meta["val"].shape != weighted.meta["val"].shape:
        return
    numbers = _numbers(model, weighted, operand)
    if numbers is None:
        return
    factor, term = map(torch.as_tensor, _LINES[node.target](numbers, node.kwargs.get("alpha", 1.0)))  # type: ignore[arg-type]
    if not (factor.isfinite().all() and term.isfinite().all()) or is_mask(term):
        return
    own, outputs = tensors_of(model, weighted), weighted.meta["val"].shape[_channel(weighted)]
    factor, term = (x.double().expand(outputs) for x in (factor, term))
    changed = {"weight": by_output(weighted, own["weight"], factor)}
    if "bias" in own or term.any():
        changed["bias"] = own.get("bias", 0.0) * factor + term
    set_constants(model, weighted, changed, node)
    node.replace_all_uses_with(weighted)
    model.graph.erase_node(node)


def _numbers(model: GraphModule, weighted: Node, operand: Any) -> Numbers | None:
    """A number, or constants with one for each output of a convolution or linear; None for anything else."""
    if not isinstance(operand, Node):
        return operand if isinstance(operand, (int, float)) else None
    if not is_constant(operand):
        return None
    found, shape = constant(model, operand).detach().double(), weighted.meta["val"].shape
    if found.numel() == 1:
        return float(found)
    along = [1] * len(shape)
    along[_channel(weighted)] = shape[_channel(weighted)]
    return found.flatten() if [1] * (len(shape) - found.dim()) + [*found.shape] == along else None


def _channel(weighted: Node) -> int:
    return 1 if convolves(weighted) else len(weighted.meta["val"].shape) - 1


def by_output(node: Node, weight: Tensor, factor: Tensor) -> Tensor:
    """A weight, multiplied by a number for each output."""
    if is_weighted(node) and is_transposed(node):  # (inputs, outputs / groups, ...), and each group has its own outputs
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


_CAT = torch.ops.aten.cat.default


def norms_before_cats(model: GraphModule, stays: Callable[[Node], str]) -> None:
    """Moves batch norms, with the activations and clamps behind each, before the cats that only they read.

    It does so only where a convolution or linear can absorb one, and if no more norms remain than before. Nodes for
    which `stays` gives a reason to stay in float32 are not moved.
    """
    for cat in model.graph.find_nodes(op="call_function", target=_CAT):
        chain = _chain(cat)
        if chain and not any(map(stays, (cat, *chain))) and _joins_channels(cat) and _pays(cat):
            _move(model, cat, chain)
    fold_norms(model)


def _chain(cat: Node) -> list[Node]:
    """The batch norm that is the only reader of a cat, and the elementwise operators behind it, each the only reader of
    the one before."""
    chain: list[Node] = []
    while len((chain or [cat])[-1].users) == 1:
        end = (chain or [cat])[-1]
        user = next(iter(end.users))
        fits = joins(user) if chain else normalizes(user)
        known = all(map(is_constant, (n for n in user.all_input_nodes if n is not end)))
        if not fits or not known or not isinstance(user.meta["val"], Tensor):
            break
        chain.append(user)
    return chain


def _joins_channels(cat: Node) -> bool:
    dims = cat.meta["val"].dim()
    inputs, *dim = cat.args
    return (*dim, 0)[0] in (1, 1 - dims) and not any(map(is_constant, inputs))  # type: ignore[arg-type]


def _pays(cat: Node) -> bool:
    """Whether weighted sums can absorb the batch norms of all inputs but one."""
    sums = [is_weighted(x) and set(x.users) == {cat} and has_channels(x) for x in cat.all_input_nodes]
    return any(sums) and sums.count(False) <= 1 and len(sums) == len(cat.args[0])  # type: ignore[arg-type]


def _move(model: GraphModule, cat: Node, chain: list[Node]) -> None:
    parts, first = [], 0
    for x in cat.all_input_nodes:
        channels = slice(first, first + x.meta["val"].shape[1])
        for node in chain:
            x = _copied(model, cat, node, x, channels)
        parts.append(x)
        first = channels.stop
    cat.args = (parts, *cat.args[1:])
    chain[-1].replace_all_uses_with(cat)
    for node in reversed(chain):
        model.graph.erase_node(node)


def _copied(model: GraphModule, cat: Node, node: Node, x: Node, channels: slice) -> Node:
    """A copy of a call for one input of the cat, with the slice of its constants for that input's channels."""
    arguments: dict[str, Any] = named_arguments(node)
    for name, value in arguments.items():
        if not isinstance(value, Node):
            continue
        if not is_constant(value):
            arguments[name] = x
        elif (numbers := constant(model, value).detach()).numel() > 1:
            arguments[name] = folded(model, node, f"{name}_{channels.start}", numbers[channels], before=cat)
    args = [arguments.pop(name) for name in argument_names(node)[: len(node.args)]]
    return call(cat, node.target, *args, like=node, **arguments)
