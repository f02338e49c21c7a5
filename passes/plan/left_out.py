"""Finds values of a float graph of which a `where` leaves elements out, as in `torch.where(x > 0, x.sqrt(), 0)`.

What is left out reaches no result of the network. It may be NaN, infinite, or far larger than the rest, so the range of
a value is that of the other elements.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from q8ta_wgpu.ir.graph import Graph
from q8ta_wgpu.ir.int8 import works_by_element
from q8ta_wgpu.passes.plan.regions import kind_of

Taken = dict[str, bool]
"""Elements that are taken of a value: by the names of bools, whether those where they are True or those where they are
False, for any of these bools."""


def taken_elements(graph: Graph) -> dict[str, Taken]:
    """Which elements are taken of a result of an elementwise operator whose readers all leave some out: each is a
    `where`, or an elementwise operator of whose result some are left out. Bools broadcast to the value."""
    found: dict[str, Taken] = {}
    read = defaultdict[str, list[Taken | None]](list, {name: [None] for name in graph.outputs})
    for node in reversed(graph.nodes):
        taken = _any_of(read[node.output]) if works_by_element(kind_of(node)) else None
        shape = graph.types[node.output].shape
        if taken and all(np.broadcast_shapes(shape, graph.types[bools].shape) == shape for bools in taken):
            found[node.output] = taken
        for position, name in enumerate(node.inputs):
            chooses = node.op == "where" and position > 0
            read[name].append({node.inputs[0]: position == 1} if chooses else taken if node.op != "where" else None)
    return found


def _any_of(read: list[Taken | None]) -> Taken | None:
    """What some reader takes; None where that is all."""
    found: Taken = {}
    for taken in read:
        if taken is None or any(found.get(bools, where) != where for bools, where in taken.items()):
            return None
        found |= taken
    return found
