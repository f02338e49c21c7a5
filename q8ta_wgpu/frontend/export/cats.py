"""Moves operators from behind a cat to its inputs.

The result of a cat has one scale, the coarsest of its inputs', and a batch norm behind it rounds again. A norm of each
input is instead fused into the convolution before it, and rounds once. An input that is not a convolution's keeps its
own scale up to its norm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from q8ta_wgpu.frontend.export.editor import call, folded
from q8ta_wgpu.frontend.export.norms import fold_norms
from q8ta_wgpu.frontend.nodes import (
    argument_names,
    constant,
    has_channels,
    is_constant,
    is_weighted,
    joins,
    named_arguments,
    normalizes,
)

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
