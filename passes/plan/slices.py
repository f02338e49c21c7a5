"""Slices of a weighted sum, for example queries, keys and values of one linear: `q, k, v = linear(x).chunk(3, -1)`.

Each slice has a scale of its own, since their ranges differ. All are stored in one tensor: see passes/scale_slices.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from q8ta_wgpu.ir.graph import Array, Node
from q8ta_wgpu.ir.int8 import Moves
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.passes.plan.recursion import readers_behind_moves
from q8ta_wgpu.passes.plan.regions import is_move, kind_of
from q8ta_wgpu.passes.rewriter import Rewriter

CHANNELS = {"linear": -1, "conv2d": 1}
"""The dimension of the result that counts output channels, by operator."""


@dataclass(frozen=True)
class Slice:
    """Some channels of a weighted sum.

    Attributes:
        value: name of the first value after the sum that has no more channels than these.
        channels: their indices, int64 (n,), ascending.
    """

    value: str
    channels: Array


def slices_of(rewriter: Rewriter, node: Node) -> list[Slice]:
    """The slices that the readers of a weighted sum's result take. None of them where a reader takes all channels,
    where slices overlap, or where a cat reads a slice."""
    graph, shape = rewriter.graph, rewriter.graph.types[node.output].shape
    if node.op not in CHANNELS or len(shape) > 4:
        return []
    channel = np.indices(shape, np.int32, sparse=True)[CHANNELS[node.op]]
    waiting, found = [(node.output, np.broadcast_to(channel, shape))], list[Slice]()
    while waiting:
        name, channel_of = waiting.pop()
        readers = rewriter.readers(name)
        if name in graph.outputs or not readers or not all(_moves(rewriter, reader) for reader in readers):
            return []
        for reader in readers:
            moved = np.asarray(OPS[reader.op].reference(graph.call(reader), [channel_of]))
            channels = np.flatnonzero(np.bincount(moved.reshape(-1)))
            if len(channels) == shape[CHANNELS[node.op]]:
                waiting.append((reader.output, moved))
            else:
                found.append(Slice(reader.output, channels))
    taken = [channel for each in found for channel in each.channels]
    disjoint = len(found) > 1 and len({*taken}) == len(taken)
    return found if disjoint and not any(_is_concatenated(rewriter, s.value) for s in found) else []


def _moves(rewriter: Rewriter, node: Node) -> bool:
    kind = kind_of(node)
    return is_move(node) and kind == Moves() and not rewriter.graph.values[node.output].in_float


def _is_concatenated(rewriter: Rewriter, name: str) -> bool:
    """Whether a cat reads a value, moved or not."""
    return any(r is not None and isinstance(kind_of(r), Moves) for r in readers_behind_moves(rewriter, name))
