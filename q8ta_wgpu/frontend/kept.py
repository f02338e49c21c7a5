"""Values of runs with roundings that later runs need not compute again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Node

from q8ta_wgpu.frontend.nodes import kind, sizes_of
from q8ta_wgpu.frontend.roundings import Roundings
from q8ta_wgpu.ir.int8 import Moves

_KEPT = 2**30
"""Most bytes that are kept."""

_LARGEST = 1 / 32
"""The largest share of it that one value may take. Scores of attention over 4,096 positions take a quarter: three runs
of them would need more memory than all else that quantizing needs."""

_RUNS = 3
"""The last values of each call that are kept: the search compares a choice with small changes of it."""

Key = int
"""Stands for a value: those with one key were computed by equal calls, of equal values that were rounded alike."""


class Kept:
    """Values of earlier runs, by their keys.

    The largest values are not kept, such as scores of long sequences, and what moves elements of others is not: they
    are computed again from what they read.

    Args:
        module: the graph that is run.
        names: of values in the float program, by torch's.
        count: the number of items.
        most: bytes that are kept.
    """

    def __init__(self, module: GraphModule, names: Mapping[str, str], count: int, most: int = _KEPT) -> None:
        self._graph, self._names = module.graph, names
        self._keys: dict[Any, Key] = {}
        self._objects: dict[int, Any] = {}
        self._values: list[dict[Node, dict[Key, Tensor]]] = [{} for _ in range(count)]
        own = ((node, x) for node in module.graph.nodes if (x := _own(node)) is not None)
        sizes = {node: math.prod(sizes_of(node)) * x.element_size() * count for node, x in own}
        self._nodes, left = set[Node](), most // _RUNS
        for node in sorted(sizes, key=sizes.__getitem__):
            if (left := left - sizes[node]) < 0 or sizes[node] > _LARGEST * most:
                break
            self._nodes.add(node)

    def keys(self, roundings: Roundings) -> dict[Node, Key]:
        """The key of each node's value in a run."""
        found: dict[Node, Key] = {}
        for node in self._graph.nodes:
            edges = [(node.name, self._names.get(n.name, "")) for n in node.all_input_nodes]
            read = ((found[n], self._how(roundings, e)) for n, e in zip(node.all_input_nodes, edges, strict=True))
            key = node.name, self._same(roundings.biases.get(node.name)), *read
            found[node] = self._keys.setdefault(key, len(self._keys))
        return found

    def _how(self, roundings: Roundings, edge: tuple[str, str]) -> Any:
        """How a call reads a value."""
        if (weight := roundings.weights.get(edge)) is not None:
            return self._same(weight.source)
        _, fine = roundings.shares.get(edge, (None, None))
        return roundings.edges.get(edge), edge in roundings.rows, fine

    def _same(self, given: Any) -> int:
        """A number of an object, which is kept, so that no other one gets its number."""
        self._objects[id(given)] = given
        return id(given)

    def known(self, item: int, keys: Mapping[Node, Key]) -> dict[Node, Tensor]:
        """The values of an item that a run need not compute."""
        held = self._values[item].items()
        return {node: values[keys[node]] for node, values in held if keys[node] in values}

    def keep(self, item: int, keys: Mapping[Node, Key], node: Node, value: Any) -> None:
        """Notes a value of an item, if it is one of those that are kept."""
        if node in self._nodes:
            values = self._values[item].setdefault(node, {})
            values[keys[node]] = value
            if len(values) > _RUNS:
                del values[next(iter(values))]


def _own(node: Node) -> Tensor | None:
    """The value that a call computes, if it is one tensor and no part of what it reads."""
    value = node.meta.get("val")
    computes = node.op == "call_function" and not isinstance(kind(node), Moves)
    return value if computes and isinstance(value, Tensor) else None
