"""Rotary positions: products of a value with cosines and of its moved elements with sines, in any spelling.

What lies between a value and a sum, or a cat of sums, is tried on numbers: it is a rotary operator where it turns the
pairs of each row by the two other values that it reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import FLOAT32, Array, Graph, Node
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.passes.rewriter import Rewriter

_ENDS = ("add", "cat", "view")
_NODES = (*_ENDS, "slice", "mul", "affine")

_MOST = 20
"""Nodes that a rotary operator is written as."""

_LARGEST = 1 << 18
"""Elements that are tried where views say how many there are."""


@dataclass(frozen=True)
class Rotary:
    """A rotary operator in place of several nodes.

    Attributes:
        nodes: in execution order.
        made: the operator, which gives the value of the last one.
    """

    nodes: tuple[Node, ...]
    made: Node


def rotary_of(rewriter: Rewriter, places: Mapping[str, int], end: Node) -> Rotary | None:
    """The rotary operator whose result a node gives; None where it gives something else."""
    graph = rewriter.graph
    shape = graph.types[end.output].shape
    if end.op not in _ENDS or graph.types[end.output].dtype != FLOAT32 or not shape or shape[-1] % 2:
        return None
    before = _before(rewriter, places, end)
    if sum(node.op == "mul" for node in before.values()) < 2:
        return None
    read = dict.fromkeys(name for node in before.values() for name in node.inputs if name not in graph.constants)
    for x in sorted((n for n in read if graph.types[n].shape == shape), key=lambda n: -places.get(n, -1)):
        nodes = _between(x, before, places)
        inner = {node.output for node in nodes}
        others = list(dict.fromkeys(name for node in nodes for name in node.inputs if name not in inner | {x}))
        if len(others) != 2 or not nodes or nodes[-1] != end or not _alone(rewriter, nodes):
            continue
        for cos, sin in (others, others[::-1]):
            for pairs in (False, True):
                call = Node("rotary", (x, cos, sin), end.output, {"pairs": pairs})
                if _same(graph, nodes, call):
                    return Rotary(nodes, call)
    return None


def _before(rewriter: Rewriter, places: Mapping[str, int], end: Node) -> dict[str, Node]:
    """The nodes behind a node's value that may be part of a rotary operator, the latest first."""
    found, waiting = dict[str, Node](), {end.output}
    while waiting and len(found) < _MOST:
        name = max(waiting, key=lambda name: places.get(name, -1))
        waiting.remove(name)
        node = rewriter.producer(name)
        if node is not None and node.op in _NODES and rewriter.graph.types[name].dtype == FLOAT32:
            found[name] = node
            waiting |= set(node.inputs)
    return found


def _between(x: str, before: Mapping[str, Node], places: Mapping[str, int]) -> tuple[Node, ...]:
    """The nodes that follow from a value, in order."""
    behind, found = {x}, list[Node]()
    for node in sorted(before.values(), key=lambda node: places.get(node.output, -1)):
        if node.output != x and not behind.isdisjoint(node.inputs):
            behind.add(node.output)
            found.append(node)
    return tuple(found)


def _alone(rewriter: Rewriter, nodes: tuple[Node, ...]) -> bool:
    """Whether nothing else reads what lies between, and nobody asked for any of it."""
    graph, inner = rewriter.graph, {node.output for node in nodes}
    read = {reader.output for node in nodes[:-1] for reader in rewriter.readers(node.output)}
    return (
        read <= inner
        and inner.isdisjoint(graph.in_float)
        and {node.output for node in nodes[:-1]}.isdisjoint(graph.outputs)
    )


def _same(graph: Graph, nodes: tuple[Node, ...], rotary: Node) -> bool:
    """Whether nodes give what a rotary operator does."""
    types = tuple(graph.types[name] for name in rotary.inputs)
    try:
        OPS["rotary"].check(types, rotary.attrs)
    except GraphError:
        return False
    shapes, rank = [t.shape for t in types], len(types[0].shape)
    if all(node.attrs.get("dim", rank - 1) == rank - 1 and node.op != "view" for node in nodes):
        shapes = [(1,) * (len(shape) - 1) + shape[-1:] for shape in shapes]  # rows know nothing of each other
    elif types[0].numel > _LARGEST:
        return False
    draw = np.random.default_rng(0)
    arrays = [draw.normal(0, 1, shape).astype(np.float32) for shape in shapes]
    found, wanted = (_run(graph, each, dict(zip(rotary.inputs, arrays, strict=True))) for each in (nodes, (rotary,)))
    return found.shape == wanted.shape and np.allclose(found, wanted, 1e-5, 1e-5)


def _run(graph: Graph, nodes: tuple[Node, ...], values: dict[str, Array]) -> Array:
    """What nodes give for values."""
    for node in nodes:
        values[node.output] = np.asarray(OPS[node.op].reference(graph.call(node), [values[n] for n in node.inputs]))
    return values[nodes[-1].output]
