"""Which items of a calibration are simulated."""

from __future__ import annotations

from q8ta_wgpu.ir.graph import Graph
from q8ta_wgpu.kernels import OPS

INPUTS = 4
"""The number of inputs that are simulated. An item may hold several."""

NUMBERS, ITEMS = 32, 8
"""The numbers that each result should have in all simulated items together, and the most items that are taken for that.
The noise of four numbers may by chance be 5 dB above or below that of all, of 48 still 2 dB."""

_WORK = 4e9
"""Multiply-adds of all simulated items, which the numpy reference computes in a few seconds. One item is taken in any
case."""


def how_many(graph: Graph) -> int:
    """How many items are simulated."""
    shapes = [graph.types[name].shape for name in graph.inputs]
    each = min((shape[0] for shape in shapes if shape), default=1)
    results = (graph.types.get(name) for name in graph.results)  # a constant that no node reads has no type
    numbers = min((result.numel for result in results if result is not None), default=NUMBERS)
    wanted = max(-(-INPUTS // each), min(ITEMS, -(-NUMBERS // numbers)))
    work = sum(OPS[node.op].macs(graph.call(node)) for node in graph.nodes)
    return max(1, min(wanted, int(_WORK / max(work, 1))))
