"""Stores values as integers of which a range is known, though no quantizer saw them."""

from __future__ import annotations

import numpy as np

from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import INT16X4, RANGES, Node, QParams
from q8ta_wgpu.passes.rewriter import Rewriter

_LEAST = 2.0**-30
"""The smallest range that is told from a single number."""


def store(rewriter: Rewriter, name: str, reader: Node, q: QParams) -> Node:
    """Lets a node read a value or a constant as integers, dequantized; returns the node that reads them."""
    graph = rewriter.graph
    low, high = q.range
    if name in graph.constants:
        integers = arithmetic.quantize(graph.constants[name], q, low, high)
        stored = graph.add_constant(f"{name}.stored", integers, q.dtype, q)
    else:
        stored = rewriter.insert(reader, "quantize", (name,), {"lo": low, "hi": high}, f"{name}.stored", q)
    return rewriter.read(reader, name, rewriter.insert(reader, "dequantize", (stored,), {}, f"{stored}.real"))


def int16_within(low: float, high: float) -> QParams:
    """The int16 quantization of a range, with zero point 0."""
    return QParams(max(abs(low), abs(high), _LEAST) / RANGES[INT16X4][1], 0, INT16X4)


def int8_within(low: float, high: float) -> QParams:
    """The int8 quantization of a range, extended to include 0."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = float(np.float32(max((high - low) / 255, _LEAST)))
    return QParams(scale, round(-128 - low / scale))
