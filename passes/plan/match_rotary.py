"""Recognizes rotary position embeddings in any spelling, such as `x * cos + rotate_half(x) * sin`.

The nodes between `x` and a sum, or a cat of sums, are run on random numbers. They are a rotary operator if they give
what it gives, with the two other values that they read as cosines and sines.
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
"""Limit of nodes that are tried as one rotary operator."""

_LARGEST = 1 << 18
"""Limit of elements that are tried where views fix the sizes, so that one row is not enough."""


@dataclass(frozen=True)
class Rotary:
    """A rotary operator that can replace several nodes.

    Attributes:
        nodes: the nodes, in execution order.
        operator: computes the value of the last one.
    """

    nodes: tuple[Node, ...]
    operator: Node


def rotary_of(rewriter: Rewriter, positions: Mapping[str, int], end: Node) -> Rotary | None:
    """The rotary operator whose last node is `end`, if there is one. `positions` is the index of each node, by its
    output."""
    graph = rewriter.graph
    shape = graph.types[end.output].shape
    if end.op not in _ENDS or graph.types[end.output].dtype != FLOAT32 or not shape or shape[-1] % 2:
        return None
    before = _nodes_before(rewriter, positions, end)
    if sum(node.op == "mul" for node in before.values()) < 2:
        return None
    read = dict.fromkeys(name for node in before.values() for name in node.inputs if name not in graph.constants)
    for x in sorted((n for n in read if graph.types[n].shape == shape), key=lambda n: -positions.get(n, -1)):
        nodes = _between(x, before, positions)
        inner = {node.output for node in nodes}
        others = list(dict.fromkeys(name for node in nodes for name in node.inputs if name not in inner | {x}))
        if len(others) != 2 or not nodes or nodes[-1] != end or not _can_replace(rewriter, nodes):
            continue
        for cos, sin in (others, others[::-1]):
            for pairs in (False, True):
                call = Node("rotary", (x, cos, sin), end.output, {"pairs": pairs})
                if _same(graph, nodes, call):
                    return Rotary(nodes, call)
    return None


def _nodes_before(rewriter: Rewriter, positions: Mapping[str, int], end: Node) -> dict[str, Node]:
    """The nodes that a value is computed by and that may be part of a rotary operator, the latest first."""
    found, waiting = dict[str, Node](), {end.output}
    while waiting and len(found) < _MOST:
        name = max(waiting, key=lambda name: positions.get(name, -1))
        waiting.remove(name)
        node = rewriter.producer(name)
        if node is not None and node.op in _NODES and rewriter.graph.types[name].dtype == FLOAT32:
            found[name] = node
            waiting |= set(node.inputs)
    return found


def _between(x: str, before: Mapping[str, Node], positions: Mapping[str, int]) -> tuple[Node, ...]:
    """The nodes that depend on a value, in order."""
    dependent, found = {x}, list[Node]()
    for node in sorted(before.values(), key=lambda node: positions.get(node.output, -1)):
        if node.output != x and not dependent.isdisjoint(node.inputs):
            dependent.add(node.output)
            found.append(node)
    return tuple(found)


def _can_replace(rewriter: Rewriter, nodes: tuple[Node, ...]) -> bool:
    """Whether all results but the last are read by these nodes only, and none was asked to stay in float32."""
    graph, inner = rewriter.graph, {node.output for node in nodes}
    read = {reader.output for node in nodes[:-1] for reader in rewriter.readers(node.output)}
    return (
        read <= inner
        and not any(graph.values[name].in_float for name in inner)
        and {node.output for node in nodes[:-1]}.isdisjoint(graph.outputs)
    )


def _same(graph: Graph, nodes: tuple[Node, ...], rotary: Node) -> bool:
    """Whether nodes give what a rotary operator gives, on random numbers."""
    types = tuple(graph.types[name] for name in rotary.inputs)
    try:
        OPS["rotary"].check(types, rotary.attrs)
    except GraphError:
        return False
    shapes, rank = [t.shape for t in types], len(types[0].shape)
    if all(node.attrs.get("dim", rank - 1) == rank - 1 and node.op != "view" for node in nodes):
        shapes = [(1,) * (len(shape) - 1) + shape[-1:] for shape in shapes]  # rows are independent: one is enough
    elif types[0].numel > _LARGEST:
        return False
    draw = np.random.default_rng(0)
    arrays = [draw.normal(0, 1, shape).astype(np.float32) for shape in shapes]
    found, wanted = (_run(graph, each, dict(zip(rotary.inputs, arrays, strict=True))) for each in (nodes, (rotary,)))
    return found.shape == wanted.shape and np.allclose(found, wanted, 1e-5, 1e-5)


def _run(graph: Graph, nodes: tuple[Node, ...], values: dict[str, Array]) -> Array:
    """The value of the last node, computed from those of the inputs."""
    for node in nodes:
        values[node.output] = np.asarray(OPS[node.op].reference(graph.call(node), [values[n] for n in node.inputs]))
    return values[nodes[-1].output]
