"""Calls that move the elements of one tensor, and the source of each element of the result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from q8ta_wgpu.frontend.nodes import kind, why_in_float
from q8ta_wgpu.ir.int8 import Moves

_aten = torch.ops.aten


def moves(node: Node) -> bool:
    """Whether a call only moves the elements of one tensor."""
    int8 = kind(node)
    return isinstance(int8, Moves) and not int8.fill and len(node.all_input_nodes) == 1 and not why_in_float(node)


def indices_along(shape: Sequence[int], axis: int) -> Tensor:
    """A float64 tensor of this shape whose elements are their indices along an axis, counted from 1."""
    indices = torch.arange(1, shape[axis] + 1, dtype=torch.float64)
    return indices.reshape([-1 if i == axis else 1 for i in range(len(shape))]).expand(*shape)


def along(indices: Tensor, axis: int) -> Tensor | None:
    """The indices along an axis, if they are the same at all other coordinates."""
    first = indices
    for i in range(indices.dim()):
        first = first if i == axis % indices.dim() else first.narrow(i, 0, 1)
    return first.reshape(-1) if torch.equal(first.expand_as(indices), indices) else None


def moved(node: Node, source: Node, indices: Tensor) -> Iterator[tuple[Node, Tensor]]:
    """The results of a call that reads `source`: each with the element of `indices` at every element's source."""
    result = result_of(node, {source: indices})
    if isinstance(result, Tensor):
        yield node, result
    else:
        yield from ((item, result[item.args[1]]) for item in node.users)


def result_of(node: Node, values: Mapping[Node, Any]) -> Any:
    """The result of a call for these values of its operands."""
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
    target: Any = node.target
    if target in (_aten.view.default, _aten._unsafe_view.default):  # reshape also accepts the result of an expand
        target = _aten.reshape.default
    return target(*args, **kwargs)
