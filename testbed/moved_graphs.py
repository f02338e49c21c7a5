"""Graphs of a convolution that reads what moves make of several tensors, for prologues: one of each kind of move, with
channels that are no whole words, strides, paddings and upsampled images."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from q8ta_wgpu.ir.graph import DTYPES, INT8X4, INT16X4, RANGES, Array, Attrs, Graph, Node, QParams, TensorType
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import Case
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.passes.fold_moves import fold_moves
from q8ta_wgpu.passes.fold_producers import fold_stages
from testbed import epilogue_graphs, op_graphs
from testbed.op_graphs import Setting

CONV = OPS["conv2d"]
TWICE: Attrs = {"scale": (2.0, 2.0), "size": (0, 0), "exact": False}


class Moves:
    """Moves in front of a graph's input x0: its nodes and its inputs."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.nodes, self.inputs = graph, list[Node](), list[str]()

    def given(self, *shape: int) -> str:
        """An input."""
        name = f"m{len(self.inputs)}"
        self.inputs.append(name)
        self.graph.types[name] = replace(self.graph.types["x0"], shape=shape)
        return name

    def moved(self, op: str, *inputs: str, **attrs: Any) -> str:
        """The result of a move."""
        shape, _ = OPS[op].check(tuple(self.graph.types[name] for name in inputs), attrs)
        name = f"v{len(self.nodes)}"
        self.graph.types[name] = replace(self.graph.types["x0"], shape=shape)
        self.nodes.append(Node(op, inputs, name, attrs))
        return name

    def part(self, x: str, start: int, end: int) -> str:
        """Channels of a value."""
        return self.moved("slice", x, dim=1, start=start, end=end, step=1, extent=0)

    def shuffled(self, x: str) -> str:
        """A channel_shuffle of two groups, as ShuffleNet writes it."""
        n, c, h, w = self.graph.types[x].shape
        split = self.moved("view", x, shape=(n, 2, c // 2, h, w))
        return self.moved("view", self.moved("permute", split, dims=(0, 2, 1, 3, 4)), shape=(n, c, h, w))


@dataclass(frozen=True)
class Moved:
    """A convolution of `weight` on what `moves` makes of several tensors, of the shape `x`."""

    x: Shape
    weight: Shape
    moves: Callable[[Moves], str]
    attrs: Attrs

    def graph(self, setting: Setting, after: str = "") -> tuple[Graph, dict[str, Array]]:
        """The graph with its moves, and its inputs."""
        case = Case((self.x, self.weight, (self.weight[0],)), self.attrs)
        build = epilogue_graphs.epilogue_graph if after else op_graphs.int8_graph
        graph, inputs = build(CONV, case, setting, *((after,) if after else ()))
        moves = Moves(graph)
        last = self.moves(moves)
        nodes = [node if node.output != last else replace(node, output="x0") for node in moves.nodes]
        graph.nodes = [*nodes, *graph.nodes]
        graph.inputs = [*moves.inputs, *(name for name in graph.inputs if name != "x0")]
        del inputs["x0"], graph.types[last]
        rng = op_graphs.rng(self.x, self.weight, setting)
        drawn = {name: _drawn(rng, graph.types[name]) for name in moves.inputs}
        return graph, {**drawn, **inputs}


def _drawn(rng: np.random.Generator, t: TensorType) -> Array:
    lo, hi = RANGES[t.dtype]
    return rng.integers(lo, hi + 1, t.shape).astype(DTYPES[t.dtype])


def _attrs(stride: int = 1, padding: tuple[int, int, int, int] = (0, 0, 0, 0), dilation: int = 1) -> Attrs:
    return {"stride": (stride, stride), "padding": padding, "dilation": (dilation, dilation), "groups": 1}


def _sliced(m: Moves) -> str:
    return m.part(m.given(2, 23, 5, 7), 5, 18)


def _joined(m: Moves) -> str:
    return m.moved("cat", m.given(2, 8, 5, 7), m.given(2, 5, 5, 7), m.given(2, 3, 5, 7), dim=1)


def _shuffled(m: Moves) -> str:
    return m.part(m.shuffled(m.moved("cat", m.given(3, 10, 5, 5), m.given(3, 10, 5, 5), dim=1)), 10, 20)


def _upsampled(m: Moves) -> str:
    return m.moved("cat", m.given(2, 16, 6, 10), m.moved("upsample_nearest", m.given(2, 32, 3, 5), **TWICE), dim=1)


def _twice(m: Moves) -> str:
    once = m.moved("upsample_nearest", m.given(1, 5, 3, 4), **TWICE)
    both = m.moved("cat", once, m.given(1, 6, 6, 8), dim=1)
    return m.moved("upsample_nearest", m.moved("channel_shuffle", both, groups=11), **TWICE)


def _halves(m: Moves) -> str:
    """Vectors, from within a tensor and in another order, of which one tensor is read twice."""
    x = m.given(1, 128, 5, 9)
    return m.moved("cat", m.part(x, 64, 112), m.given(1, 64, 5, 9), m.part(x, 16, 32), dim=1)


def _twice_larger(m: Moves) -> str:
    return m.moved("upsample_nearest", m.given(2, 7, 3, 5), scale=(1.0, 1.0), size=(6, 10), exact=True)


def _gated(channels: int, dtype: str = INT8X4) -> Callable[[Moves], str]:
    def moves(m: Moves) -> str:
        gate, x = m.given(2, channels, 1, 1), m.given(2, channels, 3, 11)
        m.graph.types[gate] = replace(m.graph.types[gate], dtype=dtype, q=QParams(0.001, -3, dtype))
        return m.moved("q8ta_mul", gate, x, multiplier=0.009 if dtype == INT8X4 else 4e-5, lo=-101, hi=127)

    return moves


MOVED = {
    "slice": Moved((2, 13, 5, 7), (9, 13, 1, 1), _sliced, _attrs()),
    "cat": Moved((2, 16, 5, 7), (7, 16, 3, 3), _joined, _attrs(padding=(1, 1, 1, 1))),
    "shuffle": Moved((3, 10, 5, 5), (20, 10, 1, 1), _shuffled, _attrs(stride=2)),
    "upsample": Moved((2, 48, 6, 10), (16, 48, 3, 3), _upsampled, _attrs(padding=(1, 1, 1, 1))),
    "upsample twice": Moved((1, 11, 12, 16), (6, 11, 3, 2), _twice, _attrs(2, (1, 0, 2, 1), 2)),
    "halves": Moved((1, 128, 5, 9), (32, 128, 1, 1), _halves, _attrs()),
    "gate": Moved((2, 21, 3, 11), (9, 21, 1, 1), _gated(21), _attrs()),
    "gate of int16": Moved((2, 21, 3, 11), (9, 21, 1, 1), _gated(21, INT16X4), _attrs()),
    "gate of vectors": Moved((2, 64, 3, 11), (32, 64, 1, 1), _gated(64), _attrs()),
    "gate of many": Moved((2, 16, 3, 11), (64, 16, 1, 1), _gated(16), _attrs()),
    "exact": Moved((2, 7, 6, 10), (8, 7, 1, 1), _twice_larger, _attrs()),
}
"""By name: the shapes of what is read and of the weight, the moves, and attributes of the convolution."""


def fused(graph: Graph, target: Target) -> Graph:
    """A graph with its moves fused, and with its gate, which the passes do on CPUs alone."""
    graph = graph.copy()
    fold_moves(graph, target)
    fold_stages(graph, replace(target, shares_memory=False))
    graph.prune()
    return graph


def graphs(target: Target) -> Iterator[Graph]:
    """The fused graph of each of MOVED."""
    for moved in MOVED.values():
        yield fused(moved.graph(op_graphs.SETTINGS[0])[0], target)


def taken() -> Graph:
    """Channels of two tensors in another order, some of them not at all, one twice."""
    q, shapes = QParams(0.05, 3), {"a": (2, 7, 3, 5), "b": (2, 10, 3, 5)}
    graph = Graph(list(shapes), ["y"], types={name: TensorType(shape, INT8X4, q) for name, shape in shapes.items()})
    channels = graph.add_constant("channels", np.array([9, 0, 16, 6, 3, 3, 12, 7, 1], np.int32))
    graph.types["y"] = TensorType((2, 9, 3, 5), INT8X4, q)
    graph.nodes = [Node("q8ta_take_channels", (channels, *shapes), "y", {})]
    return graph
