"""Quantizes scores that no quantizer saw, because the program adds a mask before a bias or a factor.

`(q @ k + mask) + bias` has no value without the mask that calibration could observe. After `gather_masks` it is
`(q @ k + bias) + mask`. The range of `q @ k + bias` follows from the ranges of its int8 operands.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import BOOL, INT8X4, Graph, Node, QParams
from q8ta_wgpu.passes.operands import affine_of
from q8ta_wgpu.passes.plan.masks import reads_masks
from q8ta_wgpu.passes.plan.recursion import Question, answer
from q8ta_wgpu.passes.plan.regions import is_move
from q8ta_wgpu.passes.rewriter import Rewriter

Interval = tuple[float, float]
"""(low, high)."""


def round_scores(graph: Graph) -> None:
    """Quantizes the scores of each masked softmax that sums, factors and moves compute from int8 values."""
    rewriter, known = Rewriter(graph), dict[str, Interval | None]()

    def ask(name: str) -> Question[Interval | None]:
        return _interval(rewriter, name)

    for node in rewriter.nodes():
        add = rewriter.producer(node.inputs[0]) if reads_masks(node) else None
        for name in add.inputs if add is not None and add.op == "add" else ():
            scores = rewriter.producer(name)
            if add is None or scores is None or scores.op == "dequantize":
                continue
            if (found := answer(ask, name, known)) is not None:
                _round(rewriter, add, scores, found)
    rewriter.commit()


def _interval(rewriter: Rewriter, name: str) -> Question[Interval | None]:
    """The range of a value that sums, factors and moves compute from int8 values and constants; None of others."""
    graph = rewriter.graph
    if name in graph.constants:
        values = graph.constants[name]
        return float(values.min()), float(values.max())
    node = rewriter.producer(name)
    if node is None:
        return None
    if node.op == "dequantize":
        q = graph.types[node.inputs[0]].q
        if q is None or q == BOOL:
            return None
        return (q.range[0] - q.zero) * q.scale, (q.range[1] - q.zero) * q.scale
    affine = affine_of(node)
    if node.op != "add" and affine is None and not is_move(node):
        return None
    ranges = list[Interval]()
    for operand in node.inputs:
        if (found := (yield operand)) is None:
            return None
        ranges.append(found)
    if node.op == "add":
        (low, high), ends = ranges[0], [node.attrs["alpha"] * end for end in ranges[1]]
        return low + min(ends), high + max(ends)
    if affine is not None:
        ends = [affine[0] * end + affine[1] for end in ranges[0]]
        return min(ends), max(ends)
    return ranges[0]


def _round(rewriter: Rewriter, add: Node, scores: Node, found: Interval) -> None:
    """Inserts quantize and dequantize between scores of this range and the sum that adds a mask to them. A constant in
    the scores is stored as int8, too."""
    graph, name = rewriter.graph, scores.output
    operands = []
    for operand in scores.inputs:
        if operand in graph.constants and scores.op == "add":
            values = graph.constants[operand]
            q = _qparams(float(values.min()), float(values.max()))
            int8 = graph.add_constant(f"{operand}.int8", arithmetic.quantize(values, q, *q.range), INT8X4, q)
            operand = rewriter.insert(scores, "dequantize", (int8,), {}, graph.types[operand], f"{int8}.real")
        operands.append(operand)
    rewriter.replace(scores, replace(scores, inputs=tuple(operands)))
    q = _qparams(*found)
    to = replace(graph.types[name], dtype=INT8X4, q=q)
    low, high = q.range
    int8 = rewriter.insert(add, "quantize", (name,), {"lo": low, "hi": high}, to, f"{name}.int8")
    real = rewriter.insert(add, "dequantize", (int8,), {}, graph.types[name], f"{int8}.real")
    rewriter.replace(add, replace(add, inputs=tuple(real if n == name else n for n in add.inputs)))


def _qparams(low: float, high: float) -> QParams:
    """Scale and zero point of a range, extended to include 0."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = float(np.float32(max((high - low) / 255, 2.0**-30)))
    return QParams(scale, round(-128 - low / scale))
