"""Channels of like size: what each channel of a value is multiplied by, and what is added to it, where that changes
nothing but how well one scale suits them all.

What makes a value by channel (a convolution, a linear, a norm with weights) can make x' = (x - middle) / factor of each
channel x, if all that reads it takes that back: the columns of a convolution's or linear's weight, and a bias, or a
batch norm. In between may be what keeps channels apart and does the same for x' as for x (Nagel et al., Data-Free
Quantization Through Weight Equalization and Bias Correction, 2019; with middles as Wei et al., Outlier Suppression+,
2023). The float network stays the same function, but for float32's rounding.

A factor is the root of a channel's size beside the largest: what calibration met is not all there is, and the weights
that read a channel grow by as much.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from q8ta_wgpu.frontend.export.editor import give, tensors_of
from q8ta_wgpu.frontend.export.norms import is_known
from q8ta_wgpu.frontend.export.scaled import by_input, by_output
from q8ta_wgpu.frontend.export.sized import Sized
from q8ta_wgpu.frontend.importer.importer import import_float
from q8ta_wgpu.frontend.moves import along, moved, moves, places_along, result_of
from q8ta_wgpu.frontend.nodes import (
    convolves,
    integer,
    is_constant,
    is_transposed,
    is_weighted,
    kind,
    multiplies,
    named_arguments,
    normalizes,
)
from q8ta_wgpu.frontend.notes import CHANNELS, note, noted
from q8ta_wgpu.ir.int8 import Monotonic, Sloped
from q8ta_wgpu.passes.plan.masks import whole_rows

LEAST = 128
"""Inputs that say how large channels are. By 32, when there are no more to calibrate with, a vision transformer lost
0.3 to 8 dB (`bench/suite`); by 128 it gained 0.2 to 0.3."""

_MOST = 2**29
"""Bytes of inputs that are held for it."""

_SMALLEST = 1 / 16
"""Least size of a channel beside the largest: a smaller one may be larger on other inputs."""

_LAYER_NORM = "aten.layer_norm.default"
_SLOPED = re.compile(r"aten\.(relu|leaky_relu)_?\.default")
_MEANS = re.compile(r"aten\.(mean|(adaptive_)?avg_pool\dd|upsample_\w+)\.\w+")
_PRODUCTS = re.compile(r"aten\.(matmul|bmm|mm)\.default")


@dataclass(frozen=True)
class _Reader:
    """What takes a factor and a middle back: for each channel it reads, which one of the source's that is, from 1 on; 0
    where it is another's."""

    node: Node
    channels: Tensor


@dataclass
class _Followed:
    """Where the channels that a node makes are read.

    Attributes:
        fixed: whether each channel, from 1 on, is read by what does not take a factor back.
        whole_rows: gives the calls of softmax of which every row sums up to one.
        shifts: whether channels may be moved to the middle, too.
    """

    source: Node
    readers: list[_Reader]
    fixed: Tensor
    whole_rows: Callable[[], Collection[str]]
    shifts: bool = True

    def fix(self, places: Tensor) -> None:
        """Leaves the channels of these places as they are."""
        for axis, step in enumerate(places.stride()):
            places = places if step or not places.numel() else places.narrow(axis, 0, 1)
        self.fixed[places.long()] = True


def enough(model: GraphModule, items: Iterator[tuple[Tensor, ...]]) -> list[tuple[Tensor, ...]]:
    """The first inputs of a network, as many as `equalize` needs; fewer where they are large or there are no more."""
    held: list[tuple[Tensor, ...]] = []
    batched, size = _is_batched(model), 0
    while _count(held, batched) < LEAST and size <= _MOST and (item := next(items, None)) is not None:
        held.append(tuple(x.clone() for x in item))  # what gives them may write the next into the same memory
        size += sum(x.nbytes for x in item)
    return held


def _count(items: Iterable[tuple[Tensor, ...]], batched: bool) -> int:
    return sum(len(item[0]) if batched else 1 for item in items)


def _is_batched(model: GraphModule) -> bool:
    """Whether all that a network is given and gives has as many rows: those of a batch."""
    (output,) = model.graph.find_nodes(op="output")
    ends = [n.meta["val"] for n in (*model.graph.find_nodes(op="placeholder"), *output.all_input_nodes)]
    values = [value for value in ends if isinstance(value, Tensor)]
    return all(value.dim() for value in values) and len({integer(value.shape[0]) for value in values}) == 1


def equalize(model: GraphModule, inputs: Sequence[tuple[Tensor, ...]]) -> None:
    """Makes channels of like size in a float graph, by the values that inputs lead to, and notes at each node what was
    done to its channels. Nothing is done where there are fewer than LEAST inputs."""
    if _count(inputs, _is_batched(model)) < LEAST:
        return
    found = list(_found(model))
    ranges = _Ranges(model, [reader.node for one in found for reader in one.readers])
    for item in inputs:
        ranges.run(*item)
    for one in found:
        if (chosen := _chosen(one, ranges.met)) is not None:
            note(one.source, CHANNELS, [numbers.tolist() for numbers in chosen])
            _apply(model, one, *chosen)


def equalize_alike(model: GraphModule, done: Mapping[Node, Node]) -> None:
    """Does to a float graph what was done to the nodes of another one, by the node here that each of those is."""
    chosen = {here: noted(there, CHANNELS) for there, here in done.items()}
    for one in _found(model):
        if chosen.get(one.source):
            _apply(model, one, *(torch.tensor(numbers, dtype=torch.float64) for numbers in chosen[one.source]))


def _found(model: GraphModule) -> Iterator[_Followed]:
    whole = functools.cache(lambda: _whole_rows(model))
    for node in list(model.graph.nodes):
        if _makes_channels(node) and (followed := _follow(node, whole)) is not None:
            yield followed


def _whole_rows(model: GraphModule) -> set[str]:
    imported = import_float(model)
    return {imported.calls[name] for name in whole_rows(imported.graph)}


def _makes_channels(node: Node) -> bool:
    if str(node.target) == _LAYER_NORM:
        weights = [named_arguments(node).get(name) for name in ("weight", "bias")]
        return all(isinstance(n, Node) and is_constant(n) and n.meta["val"].dim() == 1 for n in weights)
    return _absorbs(node)


def _absorbs(node: Node) -> bool:
    """Whether a node is a convolution, linear or batch norm with constants."""
    plain = is_weighted(node) and not multiplies(node) and "input" in named_arguments(node) and _has_batch(node)
    return (plain or normalizes(node)) and isinstance(node.meta["val"], Tensor) and is_known(node)


def _has_batch(node: Node) -> bool:
    """Whether channels are where they are looked for: torch's convolutions also take one image by itself."""
    given = named_arguments(node)
    return not convolves(node) or bool(given["input"].meta["val"].dim() == given["weight"].meta["val"].dim())


def _axis(node: Node) -> int:
    """Of the channels in what a node makes, and reads."""
    by_rows = str(node.target) == _LAYER_NORM or (is_weighted(node) and not convolves(node))
    return -1 if by_rows else 1


def _follow(source: Node, whole: Callable[[], Collection[str]]) -> _Followed | None:
    """All that reads a node's channels; None where nothing takes any of them back."""
    shape = [integer(size) for size in source.meta["val"].shape]
    axis = _axis(source) % len(shape)
    waiting = [(source, places_along(shape, axis))]
    followed = _Followed(source, [], torch.zeros(shape[axis] + 1, dtype=torch.bool), whole)
    while waiting and not followed.fixed[1:].all():
        value, places = waiting.pop()
        for user in value.users:
            if _absorbs(user) and value is named_arguments(user)["input"]:
                if (channels := along(places, _axis(user))) is not None:
                    followed.readers.append(_Reader(user, channels.long()))
                    followed.shifts &= _sums_all(user)
                    continue
            elif passed := list(_passed(followed, user, value, places)):
                waiting += passed
                continue
            followed.fix(places)
    return followed if followed.readers and not followed.fixed[1:].all() else None


def _sums_all(node: Node) -> bool:
    """Whether each result is of the same inputs by the same weights: no padding adds zeros."""
    padding = named_arguments(node).get("padding", 0)
    return normalizes(node) or not (
        is_transposed(node) or (padding if isinstance(padding, (int, str)) else any(padding))
    )


def _passed(followed: _Followed, node: Node, value: Node, places: Tensor) -> Iterator[tuple[Node, Tensor]]:
    """What a call of a value gives, and the channel that each element is from; nothing where channels are mixed, or
    made another way."""
    name = str(node.target)
    if _SLOPED.fullmatch(name) or isinstance(kind(node), Sloped):
        followed.shifts = False
        yield node, places
    elif isinstance(kind(node), Monotonic) or _MEANS.fullmatch(name):
        if isinstance(node.meta["val"], Tensor) and node.all_input_nodes == [value]:
            result, negative, square = (next(moved(node, value, x))[1] for x in (places, -places, places * places))
            alike = _close(result, -negative) and _close(result * result, square)
            yield from [(node, result.round())] if alike else []
    elif moves(node):
        yield from moved(node, value, places)
    elif name == "aten.cat.default":
        shapes = {n: [integer(size) for size in n.meta["val"].shape] for n in node.all_input_nodes}
        others = {n: torch.zeros(shape, dtype=places.dtype) for n, shape in shapes.items()}
        yield node, result_of(node, {**others, value: places})
    elif _PRODUCTS.fullmatch(name) and places.dim() > 1 and node.args[1] is value and node.args[0] is not value:
        row = places.narrow(-2, 0, 1)
        if torch.equal(row.expand_as(places), places):
            followed.shifts &= isinstance(node.args[0], Node) and node.args[0].name in followed.whole_rows()
            yield node, row.expand([integer(size) for size in node.meta["val"].shape])


def _close(a: Tensor, b: Tensor) -> bool:
    """Whether places are the same but for float64's rounding: neighbours of any number are farther apart."""
    return torch.allclose(a, b, rtol=1e-12, atol=1e-9)


class _Ranges(Sized):
    """Runs a graph and notes the least and the largest value of every channel that nodes read."""

    def __init__(self, model: GraphModule, readers: Iterable[Node]) -> None:
        super().__init__(model)
        self.met: dict[tuple[Node, int], tuple[Tensor, Tensor]] = {}
        self._axes: dict[Node, set[int]] = {}
        for reader in readers:
            self._axes.setdefault(_read_by(reader), set()).add(_axis(reader))

    def run_node(self, n: Node) -> Any:
        """Runs it, and looks at what it gives."""
        result = super().run_node(n)
        for axis in self._axes.get(n, ()):
            rows = result.movedim(axis, 0).reshape(result.shape[axis], -1)
            low, high = rows.amin(1), rows.amax(1)  # a tenth of aminmax's time
            before = self.met.get((n, axis), (low, high))
            self.met[n, axis] = torch.minimum(before[0], low), torch.maximum(before[1], high)
        return result


def _read_by(reader: Node) -> Node:
    """What a convolution, linear or batch norm reads."""
    value: Node = named_arguments(reader)["input"]
    return value


def _chosen(one: _Followed, met: Mapping[tuple[Node, int], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor] | None:
    """The factor and the middle of each channel, in float64; None where nothing is known or to be gained."""
    count = one.source.meta["val"].shape[_axis(one.source)]
    low, high = (torch.full((count + 1,), sign * float("inf"), dtype=torch.float64) for sign in (1, -1))
    for reader in one.readers:
        ends = met[_read_by(reader.node), _axis(reader.node)]
        low.scatter_reduce_(0, reader.channels, ends[0].double(), "amin")
        high.scatter_reduce_(0, reader.channels, ends[1].double(), "amax")
    free = torch.isfinite(low) & torch.isfinite(high) & ~one.fixed
    free[0] = False
    middle = torch.where(free, (low + high) / 2, 0.0) if one.shifts else torch.zeros_like(low)
    size = torch.maximum(high - middle, middle - low)
    largest = float(size.max())
    if not free.any() or not 0 < largest < float("inf"):
        return None
    factor = torch.where(free, torch.sqrt(torch.clamp(size / largest, min=_SMALLEST)), 1.0)
    return factor[1:], middle[1:]


def _apply(model: GraphModule, one: _Followed, factor: Tensor, middle: Tensor) -> None:
    for reader in one.readers:
        own = torch.cat([torch.ones(1), factor])[reader.channels], torch.cat([torch.zeros(1), middle])[reader.channels]
        _take_back(model, reader.node, *own)
    tensors = tensors_of(model, one.source)
    changed = {"weight": by_output(one.source, tensors.get("weight", torch.ones_like(factor)), 1 / factor)}
    if "bias" in tensors or one.shifts:
        changed["bias"] = (tensors.get("bias", 0.0) - middle) / factor
    give(model, one.source, changed)


def _take_back(model: GraphModule, node: Node, factor: Tensor, middle: Tensor) -> None:
    """Lets a node read (x - middle) / factor of each channel, and make of it what it made of x."""
    tensors = tensors_of(model, node)
    if normalizes(node):
        mean = (tensors["running_mean"] - middle) / factor
        give(model, node, {"weight": tensors.get("weight", 1.0) * factor, "running_mean": mean})
        return
    weight = tensors["weight"]
    changed = {"weight": by_input(node, weight, factor)}
    if middle.any():
        added = by_input(node, weight, middle).reshape(len(weight), -1).sum(1)
        changed["bias"] = tensors.get("bias", 0.0) + added
    give(model, node, changed)
