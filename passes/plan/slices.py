"""Slices of a weighted sum: values that moves take its result apart into, as queries, keys and values of one linear.

Each has values of its own size, and a scale of its own. They are stored as one tensor all the same: see
passes/scale_slices.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from q8ta_wgpu.ir.graph import Array, Node
from q8ta_wgpu.ir.int8 import Moves
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.passes.plan.regions import is_move, kind_of
from q8ta_wgpu.passes.rewriter import Rewriter

CHANNELS = {"linear": -1, "conv2d": 1}
"""The dimension of a result along which weight and bias have a row and a number each."""


@dataclass(frozen=True)
class Slice:
    """A value with some channels of a sum: the first one on the way from the sum that has not all of them."""

    value: str
    channels: Array


def slices_of(rewriter: Rewriter, node: Node) -> list[Slice]:
    """The slices that the result of a weighted sum is taken apart into, and nothing where anything reads the whole,
    where slices share channels, or where a cat joins one with something else."""
    graph, shape = rewriter.graph, rewriter.graph.types[node.output].shape
    if node.op not in CHANNELS or len(shape) > 4:
        return []
    channel = np.indices(shape, np.int32, sparse=True)[CHANNELS[node.op]]
    waiting, found = [(node.output, np.broadcast_to(channel, shape))], list[Slice]()
    while waiting:
        name, places = waiting.pop()
        readers = rewriter.readers(name)
        if name in graph.outputs or not readers or not all(_moves(rewriter, reader) for reader in readers):
            return []
        for reader in readers:
            moved = np.asarray(OPS[reader.op].reference(graph.call(reader), [places]))
            channels = _met(moved, shape[CHANNELS[node.op]])
            if len(channels) == shape[CHANNELS[node.op]]:
                waiting.append((reader.output, moved))
            else:
                found.append(Slice(reader.output, channels))
    taken = np.concatenate([part.channels for part in found]) if found else np.zeros(0)
    apart = len(found) > 1 and len(np.unique(taken)) == len(taken)
    return found if apart and not any(_is_joined(rewriter, part.value) for part in found) else []


def _met(places: Array, count: int) -> Array:
    """Which of so many channels are met, in order."""
    met = np.zeros(count, bool)
    met[places] = True
    return np.flatnonzero(met)


def _moves(rewriter: Rewriter, node: Node) -> bool:
    kind = kind_of(node)
    return is_move(node) and kind == Moves() and node.output not in rewriter.graph.in_float


def _is_joined(rewriter: Rewriter, name: str) -> bool:
    """Whether a cat reads a value, moved or not."""
    for reader in rewriter.readers(name):
        if isinstance(kind_of(reader), Moves) and (len(reader.inputs) > 1 or _is_joined(rewriter, reader.output)):
            return True
    return False
