"""Finds the nodes that read the channels of a node's result, through nodes that compute each channel separately."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from q8ta_wgpu.frontend.export.norms import is_known
from q8ta_wgpu.frontend.importer.importer import import_float
from q8ta_wgpu.frontend.moves import along, indices_along, moved, moves, result_of
from q8ta_wgpu.frontend.nodes import (
    convolves,
    is_constant,
    is_transposed,
    is_weighted,
    kind,
    multiplies,
    named_arguments,
    normalizes,
    sizes_of,
)
from q8ta_wgpu.ir.int8 import Monotonic, PRelu
from q8ta_wgpu.passes.plan.masks import whole_rows

_LAYER_NORM = "aten.layer_norm.default"
_SLOPED = re.compile(r"aten\.(relu|leaky_relu)_?\.default")
_MEANS = re.compile(r"aten\.(mean|(adaptive_)?avg_pool\dd|upsample_\w+)\.\w+")
_PRODUCTS = re.compile(r"aten\.(matmul|bmm|mm)\.default")


@dataclass(frozen=True)
class Reader:
    """A node that can undo a factor and a shift of each channel that it reads. `channels` has the number of each in the
    source, from 1 on, or 0 for a channel of another value."""

    node: Node
    channels: Tensor


@dataclass
class Channels:
    """The readers of the channels of a node's result.

    Attributes:
        fixed: whether each channel, numbered from 1 on, has a reader that cannot undo a factor.
        whole_rows: returns the calls of softmax of which every row sums up to one.
        shifts: whether channels may also be shifted.
    """

    source: Node
    readers: list[Reader]
    fixed: Tensor
    whole_rows: Callable[[], Collection[str]]
    shifts: bool = True

    def fix(self, channels: Tensor) -> None:
        """Marks these channels as fixed."""
        for axis, step in enumerate(channels.stride()):
            channels = channels if step or not channels.numel() else channels.narrow(axis, 0, 1)
        self.fixed[channels.long()] = True


def channels_of(model: GraphModule) -> Iterator[Channels]:
    """For each node of a float graph whose channels have a reader that can undo a factor, its readers."""
    whole = functools.cache(lambda: _whole_rows(model))
    for node in list(model.graph.nodes):
        if _makes_channels(node) and (found := _follow(node, whole)) is not None:
            yield found


def _whole_rows(model: GraphModule) -> set[str]:
    imported = import_float(model)
    return {imported.calls[name] for name in whole_rows(imported.graph)}


def _makes_channels(node: Node) -> bool:
    if str(node.target) == _LAYER_NORM:
        weights = [named_arguments(node).get(name) for name in ("weight", "bias")]
        return all(isinstance(n, Node) and is_constant(n) and n.meta["val"].dim() == 1 for n in weights)
    return _absorbs(node)


def _absorbs(node: Node) -> bool:
    """Whether a node is a convolution, linear or batch norm with constant parameters."""
    plain = is_weighted(node) and not multiplies(node) and "input" in named_arguments(node) and _has_batch(node)
    return (plain or normalizes(node)) and isinstance(node.meta["val"], Tensor) and is_known(node)


def _has_batch(node: Node) -> bool:
    """Whether the input of a convolution or linear has a batch. (torch's convolutions also accept one without.)"""
    arguments = named_arguments(node)
    return not convolves(node) or bool(arguments["input"].meta["val"].dim() == arguments["weight"].meta["val"].dim())


def axis_of(node: Node) -> int:
    """The dimension of the channels in the result of a node, and in its input."""
    by_rows = str(node.target) == _LAYER_NORM or (is_weighted(node) and not convolves(node))
    return -1 if by_rows else 1


def _follow(source: Node, whole: Callable[[], Collection[str]]) -> Channels | None:
    """All readers of a node's channels; None if none of them can undo a factor."""
    shape = sizes_of(source)
    axis = axis_of(source) % len(shape)
    waiting = [(source, indices_along(shape, axis))]
    followed = Channels(source, [], torch.zeros(shape[axis] + 1, dtype=torch.bool), whole)
    while waiting and not followed.fixed[1:].all():
        value, numbers = waiting.pop()
        for user in value.users:
            if _absorbs(user) and value is named_arguments(user)["input"]:
                if (channels := along(numbers, axis_of(user))) is not None:
                    followed.readers.append(Reader(user, channels.long()))
                    followed.shifts &= _sums_all(user)
                    continue
            elif passed := list(_passed(followed, user, value, numbers)):
                waiting += passed
                continue
            followed.fix(numbers)
    return followed if followed.readers and not followed.fixed[1:].all() else None


def _sums_all(node: Node) -> bool:
    """Whether all results use the same inputs and weights, so that no padding adds zeros."""
    padding = named_arguments(node).get("padding", 0)
    return normalizes(node) or not (
        is_transposed(node) or (padding if isinstance(padding, (int, str)) else any(padding))
    )


def _passed(followed: Channels, node: Node, value: Node, numbers: Tensor) -> Iterator[tuple[Node, Tensor]]:
    """The results of a call, each with the channel that every element is from. Yields nothing if the call mixes
    channels, or computes them in different ways."""
    name = str(node.target)
    if _SLOPED.fullmatch(name) or isinstance(kind(node), PRelu):
        followed.shifts = False
        yield node, numbers
    elif isinstance(kind(node), Monotonic) or _MEANS.fullmatch(name):
        if isinstance(node.meta["val"], Tensor) and node.all_input_nodes == [value]:
            result, negative, square = (next(moved(node, value, x))[1] for x in (numbers, -numbers, numbers * numbers))
            alike = _close(result, -negative) and _close(result * result, square)
            yield from [(node, result.round())] if alike else []
    elif moves(node):
        yield from moved(node, value, numbers)
    elif name == "aten.cat.default":
        shapes = {n: sizes_of(n) for n in node.all_input_nodes}
        others = {n: torch.zeros(shape, dtype=numbers.dtype) for n, shape in shapes.items()}
        yield node, result_of(node, {**others, value: numbers})
    elif _PRODUCTS.fullmatch(name) and numbers.dim() > 1 and node.args[1] is value and node.args[0] is not value:
        row = numbers.narrow(-2, 0, 1)
        if torch.equal(row.expand_as(numbers), numbers):
            followed.shifts &= isinstance(node.args[0], Node) and node.args[0].name in followed.whole_rows()
            yield node, row.expand(sizes_of(node))


def _close(a: Tensor, b: Tensor) -> bool:
    """Whether channel numbers are equal up to float64's rounding, which is less than the distance between numbers."""
    return torch.allclose(a, b, rtol=1e-12, atol=1e-9)
