"""Weights with zero points become weights about zero, exactly: sum x * (w - z)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from q8ta_wgpu.ir.graph import Array, Graph, Node
from q8ta_wgpu.ir.int8 import WeightedSum
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.model.verify import infer
from q8ta_wgpu.passes.rewriter import Rewriter


def center_weights(graph: Graph) -> None:
    """w - z where int8 holds it. Where it does not, what is over is the weight of a second copy of the channels that
    have such weights: x * 200 = x * 127 + x * 73."""
    rewriter = Rewriter(graph)
    for node in rewriter.nodes():
        if not isinstance(OPS[node.op].int8, WeightedSum):
            continue
        weight = rewriter.producer(node.inputs[1])
        found = _steps(graph, weight) if weight is not None else None
        if weight is None or found is None:
            continue
        steps, scale, axis = found
        held = np.clip(steps, -128, 127)
        over = steps - held
        channels = -1 if node.op == "linear" else 1
        which = np.flatnonzero(over.any(tuple(d for d in range(over.ndim) if d != channels % over.ndim)))
        x = node.inputs[0]
        if which.size:
            if over.max() > 127 or node.op not in ("linear", "conv2d") or axis == channels % over.ndim:
                continue
            x = _with_copies(rewriter, node, which, channels)
            held = np.concatenate((held, np.take(over, which, channels)), channels)
        _center(rewriter, node, x, weight, (held.astype(np.int8), scale, axis))
    rewriter.commit()


def _steps(graph: Graph, weight: Node) -> tuple[Array, Array, int] | None:
    """w - z, scales and their axis of a constant weight whose zero points are not all 0."""
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


def _with_copies(rewriter: Rewriter, node: Node, which: Array, axis: int) -> str:
    """The input of a sum with copies of some channels of every group behind the group's own."""
    graph, x = rewriter.graph, node.inputs[0]
    shape, groups = graph.types[x].shape, node.attrs.get("groups", 1)
    dim = axis % len(shape)
    each = np.concatenate((np.arange(shape[dim] // groups), which))
    index = (np.arange(groups)[:, None] * (shape[dim] // groups) + each).reshape(-1).astype(np.int32)
    inputs = (x, graph.add_constant(f"{node.output}.channels", index))
    select = Node("index_select", inputs, node.output, {"dim": dim, "extent": shape[dim]})
    return rewriter.insert(node, select.op, inputs, select.attrs, infer(graph, select), f"{x}.twice")


def _center(rewriter: Rewriter, node: Node, x: str, weight: Node, found: tuple[Array, Array, int]) -> None:
    """Lets a sum read `x` and a weight about zero."""
    graph, (values, scale, axis) = rewriter.graph, found
    names = (
        graph.add_constant(f"{weight.output}.centered", values),
        graph.add_constant(f"{weight.output}.scale", scale),
        graph.add_constant(f"{weight.output}.zero", np.zeros(scale.shape, np.int32)),
    )
    made = Node("dequantize_weight", names, node.output, {"axis": axis})
    centered = rewriter.insert(node, made.op, names, made.attrs, infer(graph, made), f"{weight.output}.about_zero")
    rewriter.replace(node, replace(node, inputs=(x, centered, *node.inputs[2:])))
