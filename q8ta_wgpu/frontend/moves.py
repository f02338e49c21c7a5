"""Calls that move the elements of one tensor, and where each element of the result is from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from q8ta_wgpu.frontend.nodes import integer, kind, stays_in_float
from q8ta_wgpu.ir.int8 import Moves

_aten = torch.ops.aten


def moves(node: Node) -> bool:
    """Whether a call moves the elements of one tensor, and those alone."""
    int8 = kind(node)
    tensors = [n for n in node.all_input_nodes if not isinstance(n.meta.get("val"), torch.SymInt)]
    return isinstance(int8, Moves) and not int8.fill and len(tensors) == 1 and not stays_in_float(node)


def places_along(shape: Sequence[int], axis: int) -> Tensor:
    """A value of this shape whose elements are their places along an axis, from 1 on."""
    places = torch.arange(1, shape[axis] + 1, dtype=torch.float64)
    return places.reshape([-1 if i == axis else 1 for i in range(len(shape))]).expand(*shape)


def along(places: Tensor, axis: int) -> Tensor | None:
    """The places along an axis, if they are the same wherever else one looks."""
    first = places
    for i in range(places.dim()):
        first = first if i == axis % places.dim() else first.narrow(i, 0, 1)
    return first.reshape(-1) if torch.equal(first.expand_as(places), places) else None


def moved(node: Node, source: Node, places: Tensor) -> Iterator[tuple[Node, Tensor]]:
    """What a call of `source` gives, and which number of `places` each element is from."""
    result = result_of(node, {n: places if n is source else integer(n.meta["val"]) for n in node.all_input_nodes})
    if isinstance(result, Tensor):
        yield node, result
    else:
        yield from ((item, result[item.args[1]]) for item in node.users)


def result_of(node: Node, values: Mapping[Node, Any]) -> Any:
    """What a call gives for these values of what it reads."""
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
    target: Any = node.target
    if target in (_aten.view.default, _aten._unsafe_view.default):  # of what an expand repeats as well
        target = _aten.reshape.default
    return target(*args, **kwargs)
