"""Cross-layer equalization: shifts and scales channels of a value so that one scale fits all of them, and undoes it in
the layers that read the value.

A convolution, a linear or a norm with weights can compute x' = (x - middle) / factor for each channel x. All readers
must undo it: in the columns of a convolution's or linear's weight, and a bias, or in a batch norm. Nodes in between
must keep channels separate and compute the same function of x' as of x (Nagel et al., Data-Free Quantization Through
Weight Equalization and Bias Correction, 2019; with middles as Wei et al., Outlier Suppression+, 2023). The float
network remains the same function, up to float32's rounding.

Weights that are whole steps of int8, as training with rounded weights leaves them, stay as they are: with a factor they
would be rounded once more.

The factor of a channel is the square root of its size relative to the largest. Dividing by the whole size would be too
much: calibration does not find the largest values of all inputs, and the weights that read a channel grow by the same
factor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from q8ta_wgpu.frontend.calibrate.channel_readers import Channels, axis_of, channels_of
from q8ta_wgpu.frontend.export.editor import set_constants, tensors_of
from q8ta_wgpu.frontend.export.norms import by_input, by_output
from q8ta_wgpu.frontend.export.sized import Sized
from q8ta_wgpu.frontend.nodes import (
    integer,
    named_arguments,
    normalizes,
    output_axis,
)
from q8ta_wgpu.frontend.notes import CHANNELS, note, noted
from q8ta_wgpu.ir.graph import SMALLEST_SCALE
from q8ta_wgpu.quantization.parts import APART
from q8ta_wgpu.quantization.ranges import LARGEST_WEIGHT
from q8ta_wgpu.quantization.tuned import EQUALIZED_BY, FEW

_MOST = 2**29
"""The most bytes of inputs that are held for it."""

_WHOLE = 1 / 8
"""The largest part of a step by which a weight may differ from whole steps, as float16 rounds weights and the step."""


def enough(model: GraphModule, items: Iterator[tuple[Tensor, ...]]) -> list[tuple[Tensor, ...]]:
    """The first inputs of a network, as many as `equalize` needs; fewer if they are large or there are no more."""
    held: list[tuple[Tensor, ...]] = []
    batched, size = _is_batched(model), 0
    while _count(held, batched) < EQUALIZED_BY and size <= _MOST and (item := next(items, None)) is not None:
        held.append(tuple(x.clone() for x in item))  # an iterable may reuse the memory of its items
        size += sum(x.nbytes for x in item)
    return held


def taken(items: list[tuple[Tensor, ...]]) -> Iterator[tuple[Tensor, ...]]:
    """Yields the items of a list and removes each from it, so that its memory may be freed."""
    items.reverse()
    while items:
        yield items.pop()


def _count(items: Iterable[tuple[Tensor, ...]], batched: bool) -> int:
    return sum(len(item[0]) if batched else 1 for item in items)


def _is_batched(model: GraphModule) -> bool:
    """Whether all inputs and results of a network have the same number of rows: those of a batch."""
    (output,) = model.graph.find_nodes(op="output")
    ends = [n.meta["val"] for n in (*model.graph.find_nodes(op="placeholder"), *output.all_input_nodes)]
    values = [value for value in ends if isinstance(value, Tensor)]
    return all(value.dim() for value in values) and len({integer(value.shape[0]) for value in values}) == 1


def equalize(model: GraphModule, inputs: Sequence[tuple[Tensor, ...]]) -> None:
    """Equalizes the channels of a float graph by their ranges on these inputs, and notes factors and middles with each
    node. Does nothing with fewer than EQUALIZED_BY inputs, and to channels of fewer than 2 * FEW values, or whose
    readers have weights of whole steps."""
    if _count(inputs, _is_batched(model)) < EQUALIZED_BY:
        return
    found = [one for one in channels_of(model) if not any(_on_steps(model, reader.node) for reader in one.readers)]
    recorder = _Ranges(model, [reader.node for one in found for reader in one.readers])
    for item in inputs:
        recorder.run(*item)
    for one in found:
        known = min(recorder.counts[_read_by(reader.node), axis_of(reader.node)] for reader in one.readers)
        if known >= 2 * FEW and (chosen := _chosen(one, recorder.ranges)) is not None:
            note(one.source, CHANNELS, [numbers.tolist() for numbers in chosen])
            _apply(model, one, *chosen)


def equalize_alike(model: GraphModule, done: Mapping[Node, Node]) -> None:
    """Equalizes the channels of a float graph with the factors and middles of another one. `done` has the node of this
    graph for each node of the other one."""
    chosen = {here: noted(there, CHANNELS) for there, here in done.items()}
    for one in channels_of(model):
        if chosen.get(one.source):
            _apply(model, one, *(torch.tensor(numbers, dtype=torch.float64) for numbers in chosen[one.source]))


def _on_steps(model: GraphModule, node: Node) -> bool:
    """Whether the weights of a layer are whole steps of int8, of which the largest of each output is 127."""
    if normalizes(node):
        return False
    rows = tensors_of(model, node)["weight"].movedim(output_axis(node), 0).flatten(1)
    steps = rows / rows.abs().amax(1, keepdim=True).clamp(min=SMALLEST_SCALE) * LARGEST_WEIGHT
    return rows.shape[1] > 1 and bool(((steps - steps.round()).abs() <= _WHOLE).all())


class _Ranges(Sized):
    """Runs a graph and records, of every channel that nodes read, the lowest and the highest value, and how many there
    were."""

    def __init__(self, model: GraphModule, readers: Iterable[Node]) -> None:
        super().__init__(model)
        self.ranges: dict[tuple[Node, int], tuple[Tensor, Tensor]] = {}
        self.counts = Counter[tuple[Node, int]]()
        self._axes: dict[Node, set[int]] = {}
        for reader in readers:
            self._axes.setdefault(_read_by(reader), set()).add(axis_of(reader))

    def run_node(self, n: Node) -> Any:
        """Runs a node, and records the ranges of its channels."""
        result = super().run_node(n)
        for axis in self._axes.get(n, ()):
            rows = result.movedim(axis, 0).reshape(result.shape[axis], -1)
            low, high = rows.amin(1), rows.amax(1)  # takes a tenth of the time of aminmax
            before = self.ranges.get((n, axis), (low, high))
            self.ranges[n, axis] = torch.minimum(before[0], low), torch.maximum(before[1], high)
            self.counts[n, axis] += rows.shape[1]
        return result


def _read_by(reader: Node) -> Node:
    """The input of a convolution, linear or batch norm."""
    value: Node = named_arguments(reader)["input"]
    return value


def _chosen(one: Channels, ranges: Mapping[tuple[Node, int], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor] | None:
    """The factor and the middle of each channel, in float64; None if they are unknown or would change nothing."""
    count = one.source.meta["val"].shape[axis_of(one.source)]
    low, high = (torch.full((count + 1,), sign * float("inf"), dtype=torch.float64) for sign in (1, -1))
    for reader in one.readers:
        ends = ranges[_read_by(reader.node), axis_of(reader.node)]
        low.scatter_reduce_(0, reader.channels, ends[0].double(), "amin")
        high.scatter_reduce_(0, reader.channels, ends[1].double(), "amax")
    free = torch.isfinite(low) & torch.isfinite(high) & ~one.fixed
    free[0] = False
    middle = torch.where(free, (low + high) / 2, 0.0) if one.shifts else torch.zeros_like(low)
    size = torch.maximum(high - middle, middle - low)
    largest = float(size.max())
    if not free.any() or not 0 < largest < float("inf"):
        return None
    smallest = largest / APART  # a smaller channel may be larger on other inputs
    factor = torch.where(free, torch.sqrt(torch.clamp(size, min=smallest) / largest), 1.0)
    return factor[1:], middle[1:]


def _apply(model: GraphModule, one: Channels, factor: Tensor, middle: Tensor) -> None:
    for reader in one.readers:
        own = torch.cat([torch.ones(1), factor])[reader.channels], torch.cat([torch.zeros(1), middle])[reader.channels]
        _take_back(model, reader.node, *own)
    tensors = tensors_of(model, one.source)
    changed = {"weight": by_output(one.source, tensors.get("weight", torch.ones_like(factor)), 1 / factor)}
    if "bias" in tensors or one.shifts:
        changed["bias"] = (tensors.get("bias", 0.0) - middle) / factor
    set_constants(model, one.source, changed)


def _take_back(model: GraphModule, node: Node, factor: Tensor, middle: Tensor) -> None:
    """Changes a node's parameters so that its result for (x - middle) / factor is the one that it had for x."""
    tensors = tensors_of(model, node)
    if normalizes(node):
        mean = (tensors["running_mean"] - middle) / factor
        set_constants(model, node, {"weight": tensors.get("weight", 1.0) * factor, "running_mean": mean})
        return
    weight = tensors["weight"]
    changed = {"weight": by_input(node, weight, factor)}
    if middle.any():
        added = by_input(node, weight, middle).reshape(len(weight), -1).sum(1)
        changed["bias"] = tensors.get("bias", 0.0) + added
    set_constants(model, node, changed)
