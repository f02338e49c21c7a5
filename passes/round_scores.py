"""Rounds scores that no quantizer saw, because a program adds its masks before it biases or scales them.

`(q @ k + mask) + bias` has no value without the mask that could be observed. Once masks are added last, what softmax
reads beside them is a sum or a multiple of int8 values: its range follows from theirs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import BOOL, INT8X4, Graph, Node, QParams
from q8ta_wgpu.passes.operands import affine_of
from q8ta_wgpu.passes.plan.masks import reads_masks
from q8ta_wgpu.passes.plan.regions import is_move
from q8ta_wgpu.passes.rewriter import Rewriter

Interval = tuple[float, float]


def round_scores(graph: Graph) -> None:
    """Quantizes the scores of each masked softmax that are computed from int8 values by sums, factors and moves."""
    rewriter, known = Rewriter(graph), dict[str, Interval | None]()
    for node in rewriter.nodes():
        add = rewriter.producer(node.inputs[0]) if reads_masks(node) else None
        for name in add.inputs if add is not None and add.op == "add" else ():
            made = rewriter.producer(name)
            computed = made is not None and made.op != "dequantize" and name not in graph.constants
            if computed and (found := _interval(rewriter, name, known)) is not None:
                _round(rewriter, add, name, found)  # type: ignore[arg-type]
    rewriter.commit()


def _interval(rewriter: Rewriter, name: str, known: dict[str, Interval | None]) -> Interval | None:
    """The range of a value that follows from int8 values and constants; None of what follows from anything else."""
    if name not in known:
        known[name] = _computed(rewriter, name, known)
    return known[name]


def _computed(rewriter: Rewriter, name: str, known: dict[str, Interval | None]) -> Interval | None:
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
    ranges = [_interval(rewriter, n, known) for n in node.inputs]
    if None in ranges:
        return None
    if node.op == "add":
        (low, high), ends = ranges[0], [node.attrs["alpha"] * end for end in ranges[1]]  # type: ignore[misc, union-attr]
        return low + min(ends), high + max(ends)
    if (affine := affine_of(node)) is not None:
        moved = [affine[0] * end + affine[1] for end in ranges[0]]  # type: ignore[union-attr]
        return min(moved), max(moved)
    return ranges[0] if is_move(node) else None


def _round(rewriter: Rewriter, add: Node, name: str, found: Interval) -> None:
    """Lets a sum read scores that are stored as int8."""
    graph = rewriter.graph
    scores = rewriter.producer(name)
    assert scores is not None
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
    """Scale and zero point of a range, which is made to hold 0."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = float(np.float32(max((high - low) / 255, 2.0**-30)))
    return QParams(scale, round(-128 - low / scale))
