"""The program of a model for a target: planned and built once, and shared by the sessions that run it."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace

from q8ta_wgpu.ir.graph import Graph
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.passes.layout_sync.layout_sync import Plan, sync_layouts
from q8ta_wgpu.passes.lower import lower
from q8ta_wgpu.passes.run_steps import changed
from q8ta_wgpu.program.build import Linked, build
from q8ta_wgpu.program.known_results import Tile, tiles
from q8ta_wgpu.program.program import Program


@dataclass(frozen=True, eq=False)
class Built:
    """A program, and what it was built of.

    Attributes:
        graph: the model's graph. It stays alive, so that no other graph has its identity.
        before: a copy of the graph as it was then.
        program: the program.
        tiles: how the program uses matrix units.
    """

    graph: Graph
    before: Graph
    program: Program
    tiles: frozenset[Tile]


_built: weakref.WeakValueDictionary[tuple[int, Target, str], Built] = weakref.WeakValueDictionary()
"""By the graph's identity, target and policy, while a session has them."""


def built(graph: Graph, target: Target, planned: tuple[Graph, Plan], linked: Linked, notes: tuple[str, ...]) -> Built:
    """The program of a lowered graph and its plan. It tells of `notes`."""
    lowered, plan = planned
    program = replace(build(lowered, target, plan, linked), notes=notes)
    return Built(graph, graph.copy(), program, tiles(plan, target))


def shared(
    graph: Graph, target: Target, layouts: str, linked: Linked = lambda text, buffers: None, notes: tuple[str, ...] = ()
) -> Built:
    """The program of a graph by the rules. If another session has it, it is that one's: to plan, to link and to pack
    1.5 GB of weights once more took the second session of a decoder 1.9 seconds."""
    key = id(graph), target, layouts
    found = _built.get(key)
    if found is None or changed(found.before, graph):
        lowered = lower(graph, target)
        planned = lowered, sync_layouts(lowered, target, layouts)
        found = _built[key] = built(graph, target, planned, linked, notes)
    if notes and found.program.notes != notes:  # it was made while the device opened
        found = _built[key] = replace(found, program=replace(found.program, notes=notes))
    return found
