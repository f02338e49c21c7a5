"""Splits nodes that a device runs badly or not at all: cats of more tensors than a dispatch can bind become a tree, and
reductions of large tensors to few elements two dispatches, so that more workgroups run."""

from __future__ import annotations

import math
from dataclasses import replace

from q8ta_wgpu.ir.graph import Graph, Node
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels.move.cat import MAX_INPUTS
from q8ta_wgpu.passes.rewriter import Rewriter

REDUCTIONS = ("amax", "amin", "mean", "sum")
"""Operators that can reduce over some dimensions first, then over the others."""

FEW_RESULTS, MANY_ELEMENTS = 64, 1 << 14
"""A reduction is split if it has at most so many results, each of at least so many elements. ONNX's
DynamicQuantizeLinear, for example, reads the extremes of whole images."""


def split_cat(graph: Graph, target: Target) -> None:
    """Splits each cat of more inputs than its kernels and the target allow: one storage buffer each, and the result's.
    Consecutive inputs are grouped until one cat is left."""
    limit = min(MAX_INPUTS, target.storage_buffers - 1)
    rewriter = Rewriter(graph)
    for node in rewriter.nodes():
        cat = node
        while cat.op == "cat" and len(cat.inputs) > limit:
            operands: list[str] = []
            for start in range(0, len(cat.inputs), limit):
                group = cat.inputs[start : start + limit]
                if len(group) > 1:
                    group = (rewriter.insert(cat, "cat", group, cat.attrs, f"{cat.output}.part"),)
                operands += group
            cat = rewriter.replace(cat, replace(cat, inputs=tuple(operands)))
    rewriter.commit()


def split_reductions(graph: Graph, target: Target) -> None:
    """Reduces over the last dimensions first, then over the others."""
    rewriter = Rewriter(graph)
    for node in rewriter.nodes():
        if node.op in REDUCTIONS and (last := _first_dims(node, graph)):
            x = node.inputs[0]
            attrs = {"dims": last, "keepdim": True}
            partial = rewriter.insert(node, node.op, (x,), attrs, f"{node.output}.partial", graph.types[node.output].q)
            rewriter.replace(node, replace(node, inputs=(partial,)))
    rewriter.commit()


def _first_dims(node: Node, graph: Graph) -> Shape:
    """The dimensions that the first dispatch reduces, such that the slower of the two reads least per result. () where
    one dispatch is enough."""
    shape, dims = graph.types[node.inputs[0]].shape, tuple(sorted(node.attrs["dims"]))
    count = math.prod(shape[d] for d in dims)
    if count < MANY_ELEMENTS or graph.types[node.output].numel > FEW_RESULTS:
        return ()
    # Kernels merge all dimensions before the last three into one.
    candidates = [dims[i:] for i in range(1, len(dims)) if dims[i] >= len(shape) - 3]
    reads, best = min(((_reads(shape, count, last), last) for last in candidates), default=(count, ()))
    return best if reads < count else ()


def _reads(shape: Shape, count: int, last: Shape) -> int:
    """Elements that a result of the slower dispatch reads."""
    first = math.prod(shape[d] for d in last)
    return max(first, count // first)
