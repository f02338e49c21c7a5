"""Runs of a float graph with roundings: what the choice of widths asks for, and how the numpy reference gives it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from q8ta_wgpu.ir.graph import Array, Graph, QParams
from q8ta_wgpu.model.reference import run
from q8ta_wgpu.quantization.stored import Edge, Shares

_KEPT = 2**29
"""Most bytes of float values that are kept, so that what no rounding changes is not computed again."""


Groups = Sequence[Sequence[tuple[Edge, QParams | Shares]]]
"""Groups of edges, and how each is rounded."""


class Runner(Protocol):
    """Runs the items of a calibration that are simulated."""

    exact: list[list[Array]]
    """The outputs of each item in float."""

    def outputs(self, graph: Graph) -> list[list[Array]]:
        """The outputs of each item, of the float graph with roundings added."""
        ...


@runtime_checkable
class TracedRunner(Runner, Protocol):
    """A runner that also has gradients."""

    def noise_of_each(self, graph: Graph, groups: Groups, weights: Sequence[Sequence[Array]]) -> list[float]:
        """How much of the outputs' noise each of several groups of roundings makes, to first order.

        Args:
            graph: with the weights as they are rounded.
            groups: of roundings. All of a group happen together. Of an edge in several groups the last counts. Shares
                are rounded as attention in 8 bits does.
            weights: of each item and output, how much squared errors count (`Judge.weights`).
        """
        ...


class ReferenceRunner:
    """Runs items by the numpy reference.

    Args:
        graph: the float graph.
        items: the inputs of each item, by name.

    Attributes:
        exact: the outputs of each item in float.
    """

    def __init__(self, graph: Graph, items: Sequence[Mapping[str, Array]]) -> None:
        self.graph, self._items = graph, items
        self._known: list[dict[str, Array]] = []
        self.exact: list[list[Array]] = []
        size = sum(4 * graph.types[node.output].numel for node in graph.nodes)
        keeps = size * len(items) <= _KEPT
        for item in items:
            found = run(graph, item, keep=keeps)
            self.exact.append([found[name] for name in graph.outputs])
            self._known.append({n.output: found[n.output] for n in graph.nodes} if keeps else {})

    def outputs(self, graph: Graph) -> list[list[Array]]:
        """The outputs of each item, of the float graph with roundings added. Values that no rounding changes are those
        of the float graph."""
        same = {node.output for node in self.graph.nodes}
        sources = {node.output: node for node in self.graph.nodes}
        changed: set[str] = set()
        for node in graph.nodes:
            own = sources.get(node.output)
            if own is None or own.inputs != node.inputs or not changed.isdisjoint(node.inputs):
                changed.add(node.output)
        found = []
        for item, known in zip(self._items, self._known, strict=True):
            kept = {name: known[name] for name in same - changed if name in known}
            given = run(graph, item, known=kept)
            found.append([given[name] for name in graph.outputs])
        return found
