"""Parts of a weighted sum: what its result is taken apart into, as queries, keys and values of one linear are.

Each part has values of its own size. Rounded as one tensor they share the coarsest scale; quantized by themselves,
behind the moves that take them apart, each has its own (passes/scale_parts.py stores them as one tensor all the same).
"""

from __future__ import annotations

import operator
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.fx import Node

from q8ta_wgpu.frontend.calibrate import choices
from q8ta_wgpu.frontend.nodes import (
    has_channels,
    integer,
    is_constant,
    is_kept,
    is_transposed,
    kind,
    multiplies,
    named_arguments,
)
from q8ta_wgpu.ir.int8 import Moves


def taken_apart(node: Node) -> tuple[list[Node], list[Node]]:
    """The parts that the result of a weighted sum is taken apart into, and the calls before them that move all of it.

    Both are empty where anything reads the whole, where parts share channels, and where a cat joins one with what has
    another scale.
    """
    nothing: tuple[list[Node], list[Node]] = [], []
    if not _has_rows(node):
        return nothing
    shape = [integer(size) for size in node.meta["val"].shape]
    axis = 1 if has_channels(node) else len(shape) - 1
    channels = torch.arange(shape[axis], dtype=torch.float32)  # which every move takes
    waiting = [(node, channels.reshape([-1 if i == axis else 1 for i in range(len(shape))]).expand(shape))]
    passed, parts, taken = list[Node](), list[Node](), list[int]()
    while waiting:
        value, places = waiting.pop()
        if not value.users or not all(map(moves, value.users)):
            return nothing
        for user in value.users:
            passed.append(user)
            for result, places_of in moved(user, value, places):
                found = torch.bincount(places_of.reshape(-1).int()).nonzero().reshape(-1).tolist()
                if len(found) == shape[axis]:
                    waiting.append((result, places_of))
                    continue
                parts.append(result)
                taken += found
    apart = len(parts) > 1 and len(taken) == len(set(taken)) and not any(map(_is_joined, parts))
    return ([move for move in passed if move not in parts], parts) if apart else nothing


def _has_rows(node: Node) -> bool:
    """Whether each row of a constant weight makes a channel of a linear or a convolution of up to two dimensions."""
    weight = named_arguments(node).get("weight")
    rows = isinstance(weight, Node) and is_constant(weight) and not multiplies(node) and not is_transposed(node)
    return rows and node.meta["val"].dim() < 5


def moves(node: Node) -> bool:
    """Whether a call moves the elements of one tensor, and those alone."""
    int8 = kind(node)
    tensors = [n for n in node.all_input_nodes if not isinstance(n.meta.get("val"), torch.SymInt)]
    return isinstance(int8, Moves) and not int8.fill and len(tensors) == 1 and not is_kept(node)


def moved(node: Node, source: Node, places: Tensor) -> Iterator[tuple[Node, Tensor]]:
    """What a call of `source` gives, and which channel each element is from."""
    result = choices.result(node, {n: places if n is source else integer(n.meta["val"]) for n in node.all_input_nodes})
    if isinstance(result, Tensor):
        yield node, result
    else:
        yield from ((item, result[item.args[1]]) for item in node.users)


def _is_joined(value: Node) -> bool:
    """Whether a cat reads a value, moved or not."""

    def joins(user: Node) -> bool:
        if user.target is operator.getitem or moves(user):
            return _is_joined(user)
        return isinstance(kind(user), Moves)

    return any(map(joins, value.users))
