"""Weights with zero points become weights with zero point 0, exactly: w - z as int8."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from q8ta_wgpu.ir.graph import Array, Graph, Node
from q8ta_wgpu.ir.int8 import WeightedSum
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.passes.rewriter import Rewriter


def center_weights(graph: Graph) -> None:
    """Stores w - z as int8. Where it exceeds int8, the rest becomes the weight of a second copy of that input channel:
    x * 200 = x * 127 + x * 73."""
    rewriter = Rewriter(graph)
    for node in rewriter.nodes():
        if not isinstance(OPS[node.op].int8, WeightedSum):
            continue
        weight = rewriter.producer(node.inputs[1])
        found = _steps(graph, weight) if weight is not None else None
        if weight is None or found is None:
            continue
        steps, scale, axis = found
        clipped = np.clip(steps, -128, 127)
        rest = steps - clipped
        channels = -1 if node.op == "linear" else 1
        exceeding = np.flatnonzero(rest.any(tuple(d for d in range(rest.ndim) if d != channels % rest.ndim)))
        x = node.inputs[0]
        if exceeding.size:
            if rest.max() > 127 or node.op not in ("linear", "conv2d") or axis == channels % rest.ndim:
                continue
            x = _with_copies(rewriter, node, exceeding, channels)
            clipped = np.concatenate((clipped, np.take(rest, exceeding, channels)), channels)
        _center(rewriter, node, x, weight, (clipped.astype(np.int8), scale, axis))
    rewriter.commit()


def _steps(graph: Graph, weight: Node) -> tuple[Array, Array, int] | None:
    """(w - z, scales, their axis) of a constant weight; None of any other value, or where all zero points are 0."""
    if any(name not in graph.constants for name in weight.inputs):
        return None
    if weight.op == "dequantize_weight":
        values, scale, zero = (graph.constants[name] for name in weight.inputs)
        axis = weight.attrs["axis"]
        zeros = zero.reshape([-1 if i == axis else 1 for i in range(values.ndim)])
    elif weight.op == "dequantize" and (q := graph.types[weight.inputs[0]].q) is not None and q.dtype == "int8x4":
        values, axis = graph.constants[weight.inputs[0]], 0
        zeros, scale = np.asarray(q.zero, np.int32), np.full(values.shape[0], q.scale, np.float32)
    else:
        return None
    return (values.astype(np.int32) - zeros, scale, axis) if zeros.any() else None


def _with_copies(rewriter: Rewriter, node: Node, copied: Array, axis: int) -> str:
    """Inserts an index_select that appends copies of some channels to each group of a weighted sum's input."""
    graph, x = rewriter.graph, node.inputs[0]
    shape, groups = graph.types[x].shape, node.attrs.get("groups", 1)
    dim = axis % len(shape)
    each = np.concatenate((np.arange(shape[dim] // groups), copied))
    index = (np.arange(groups)[:, None] * (shape[dim] // groups) + each).reshape(-1).astype(np.int32)
    inputs = (x, graph.add_constant(f"{node.output}.channels", index))
    return rewriter.insert(node, "index_select", inputs, {"dim": dim, "extent": shape[dim]}, f"{x}.twice")


def _center(rewriter: Rewriter, node: Node, x: str, weight: Node, found: tuple[Array, Array, int]) -> None:
    """Rewrites a weighted sum to read `x` and (values, scale, axis) with zero point 0."""
    graph, (values, scale, axis) = rewriter.graph, found
    names = (
        graph.add_constant(f"{weight.output}.centered", values),
        graph.add_constant(f"{weight.output}.scale", scale),
        graph.add_constant(f"{weight.output}.zero", np.zeros(scale.shape, np.int32)),
    )
    centered = rewriter.insert(node, "dequantize_weight", names, {"axis": axis}, f"{weight.output}.about_zero")
    rewriter.replace(node, replace(node, inputs=(x, centered, *node.inputs[2:])))
