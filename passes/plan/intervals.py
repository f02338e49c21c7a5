"""The ranges of float values that follow from the ranges of integers, whatever calibration found."""

from __future__ import annotations

import math

import numpy as np

from q8ta_wgpu.ir.graph import BOOL, FLOAT32, Graph, Node
from q8ta_wgpu.ir.int8 import Elementwise
from q8ta_wgpu.passes.operands import affine_of
from q8ta_wgpu.passes.plan.regions import is_move, kind_of

Interval = tuple[float, float]
"""(low, high)."""

_NUMBERS = 4097
"""At how many numbers of an interval a function is evaluated to find its range."""


def intervals(graph: Graph) -> dict[str, Interval]:
    """The range of each float value that follows from int8 values, constants, and operators on them."""
    found: dict[str, Interval] = {}
    for name, array in graph.constants.items():
        if graph.types[name].dtype == FLOAT32 and array.size and np.isfinite(array).all():
            found[name] = float(array.min()), float(array.max())
    for node in graph.nodes:
        interval = _of(graph, node, found)
        if interval is not None and all(map(math.isfinite, interval)):
            found[node.output] = interval
    return found


def _of(graph: Graph, node: Node, found: dict[str, Interval]) -> Interval | None:
    if node.op == "dequantize":
        q = graph.types[node.inputs[0]].q
        return None if q is None or q == BOOL else ((q.range[0] - q.zero) * q.scale, (q.range[1] - q.zero) * q.scale)
    ranges = [found[name] for name in node.inputs if name in found]
    if len(ranges) < len(node.inputs) or not ranges or graph.types[node.output].dtype != FLOAT32:
        return None
    if node.op == "add":
        ends = [node.attrs["alpha"] * end for end in ranges[1]]
        return ranges[0][0] + min(ends), ranges[0][1] + max(ends)
    if node.op == "mul":
        ends = [a * b for a in ranges[0] for b in ranges[1]]
        return min(ends), max(ends)
    if (affine := affine_of(node)) is not None:
        ends = [affine[0] * end + affine[1] for end in ranges[0]]
        return min(ends), max(ends)
    if node.op == "cat" or is_move(node):
        low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
        return (min(low, 0.0), max(high, 0.0)) if node.op == "pad" and not node.attrs.get("value") else (low, high)
    if node.op == "softmax":
        return 0.0, 1.0
    if node.op in ("sum", "mean"):
        terms = graph.types[node.inputs[0]].numel // graph.types[node.output].numel if node.op == "sum" else 1
        return ranges[0][0] * terms, ranges[0][1] * terms
    if node.op == "layer_norm":  # of n elements none is farther than sqrt(n) standard deviations from their mean
        weight, bias = (max(map(abs, each)) for each in ranges[1:3])
        reach = math.sqrt(graph.types[node.inputs[1]].numel) * weight + bias
        return -reach, reach
    kind = kind_of(node)
    if isinstance(kind, Elementwise) and len(ranges) == 1 and not kind.jumps:
        with np.errstate(all="ignore"):
            values = kind.function(np.linspace(*ranges[0], _NUMBERS), node.attrs)
        return (float(values.min()), float(values.max())) if np.isfinite(values).all() else None
    return None
