"""Stores in 16 bits what a quantized file leaves in float32 between int8 values: biases, functions, norms, residuals.

Such files quantize what products read and give. `int8 -> add -> gelu -> int8` then goes through float32, whose last
bits differ between devices and flip roundings. The range of a sum or function of int8 values follows from theirs, so it
can be stored in 16 bits, in steps far below those of the int8 values around it. Every operator then has an int8 form.
"""

from __future__ import annotations

import math

import numpy as np

from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import BOOL, FLOAT32, INT16X4, Graph, Node, QParams, TensorType
from q8ta_wgpu.ir.int8 import Elementwise
from q8ta_wgpu.passes.operands import affine_of
from q8ta_wgpu.passes.plan.recursion import readers_behind_moves
from q8ta_wgpu.passes.plan.regions import is_move, kind_of
from q8ta_wgpu.passes.rewriter import Rewriter

Interval = tuple[float, float]
"""(low, high)."""

_NUMBERS = 4097
"""At how many numbers of an interval a function is evaluated to find its range."""


def store_islands(graph: Graph) -> None:
    """Quantizes float values in 16 bits that follow from int8 values, have a known range, and lead to int8 values."""
    rewriter, intervals = Rewriter(graph), _intervals(graph)
    leads = _leads_to_integers(graph)
    for node in rewriter.nodes():
        if node.output in intervals and node.output in leads and _is_stored(rewriter, node):
            _store(rewriter, node.output, intervals[node.output])
        if node.op in ("add", "mul") and node.output in leads and node.output in intervals:
            for name in node.inputs:
                if name in graph.constants and graph.constants[name].size > 1:
                    _store_constant(rewriter, rewriter.producer(node.output) or node, name)
    rewriter.commit()


def _intervals(graph: Graph) -> dict[str, Interval]:
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


def _leads_to_integers(graph: Graph) -> set[str]:
    """The float values that become int8 values, and not the file's outputs, all the way through float operators."""
    found = {node.inputs[0] for node in graph.nodes if node.op == "quantize"}
    for node in reversed(graph.nodes):
        kind = kind_of(node)
        jumps = isinstance(kind, Elementwise) and (kind.jumps or kind.whole)  # whose operand must be exact
        if node.output in found and node.op not in ("quantize", "dequantize") and not jumps:
            found.update(node.inputs)
    return found


def _is_stored(rewriter: Rewriter, node: Node) -> bool:
    """Whether a node's result is to be stored: it computes, and a reader does not round it at once."""
    kind, graph = kind_of(node), rewriter.graph
    if kind is None or not kind.gives_int16 or node.op in ("dequantize", "quantize") or is_move(node):
        return False
    if graph.types[node.output].dtype != FLOAT32 or node.output in graph.outputs:
        return False
    readers = list(readers_behind_moves(rewriter, node.output))
    if len(readers) == 1 and readers[0] is not None and isinstance(kind_of(readers[0]), Elementwise):
        readers = list(readers_behind_moves(rewriter, readers[0].output))  # a sum and its function are rounded once
    return any(reader is None or reader.op != "quantize" for reader in readers)


def _store(rewriter: Rewriter, name: str, interval: Interval) -> None:
    """Inserts quantize and dequantize behind a value."""
    graph, q = rewriter.graph, _qparams(interval)
    t = graph.types[name]
    for reader in rewriter.readers(name):
        if reader.op == "quantize":
            continue
        to, bounds = TensorType(t.shape, q.dtype, q), {"lo": q.range[0], "hi": q.range[1]}
        stored = rewriter.insert(reader, "quantize", (name,), bounds, to, f"{name}.stored")
        real = rewriter.insert(reader, "dequantize", (stored,), {}, t, f"{stored}.real")
        present = rewriter.producer(reader.output)
        assert present is not None
        inputs = tuple(real if each == name else each for each in present.inputs)
        rewriter.replace(present, Node(present.op, inputs, present.output, present.attrs, present.source))


def _store_constant(rewriter: Rewriter, node: Node, name: str) -> None:
    """Makes a constant operand one of 16 bits."""
    graph, values = rewriter.graph, rewriter.graph.constants[name]
    q = _qparams((float(values.min()), float(values.max())))
    stored = graph.add_constant(f"{name}.stored", arithmetic.quantize(values, q, *q.range), INT16X4, q)
    real = rewriter.insert(node, "dequantize", (stored,), {}, graph.types[name], f"{stored}.real")
    inputs = tuple(real if each == name else each for each in node.inputs)
    rewriter.replace(node, Node(node.op, inputs, node.output, node.attrs, node.source))


def _qparams(interval: Interval) -> QParams:
    reach = max(abs(interval[0]), abs(interval[1]), 2.0**-30)
    return QParams(float(np.float32(reach / (2**15 - 1))), 0, INT16X4)
