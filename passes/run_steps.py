"""Runs the steps of a list of passes over a graph, and verifies what each of them changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from q8ta_wgpu.ir.graph import Graph
from q8ta_wgpu.model.verify import RUNNABLE, verify

NamedPass = tuple[str, Callable[[Graph], None]]
"""A pass and its name, for messages."""

_VERIFIED = ("nodes", "types", "inputs", "outputs", "values", "buffers")
"""The attributes of a graph that `verify` reads between passes, but for the constants."""


def run_steps(graph: Graph, steps: Iterable[NamedPass], runnable: bool = False) -> Graph:
    """A copy of a graph after the steps. It is pruned and verified after each that changed it, and runnable at the end;
    `runnable` tells that it was so before."""
    given, graph = graph, graph.copy()
    graph.prune()
    for name, step in steps:
        before = graph.copy()
        step(graph)
        if changed(before, graph):
            graph.prune()
            verify(graph, name, before)
    verify(graph, RUNNABLE, given if runnable else None)
    return graph


def changed(before: Graph, after: Graph) -> bool:
    """Whether there is something to verify. Most steps find nothing to do in most graphs. Contents of constants are not
    compared."""
    constants = len(before.constants) != len(after.constants) or any(
        before.constants.get(name) is not array for name, array in after.constants.items()
    )
    return constants or any(getattr(before, name) != getattr(after, name) for name in _VERIFIED)
