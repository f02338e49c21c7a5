"""Reductions of large tensors to few elements as two dispatches, so that more than a few workgroups take part."""

from __future__ import annotations

import math
from dataclasses import replace

from q8ta_wgpu.ir.graph import Graph, Node, TensorType
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.passes.rewriter import Rewriter

REDUCTIONS = ("amax", "amin", "mean", "sum")
"""Operators whose result over several dimensions is that over some of them, reduced over the others."""

FEW_RESULTS, MANY_ELEMENTS = 64, 1 << 14
"""Of a reduction that two dispatches make: most results, and least elements of each. ONNX's DynamicQuantizeLinear reads
the extremes of whole images."""


def split_reductions(graph: Graph, target: Target) -> None:
    """Reduces over the last of the dimensions first, then over the others."""
    rewriter = Rewriter(graph)
    for node in rewriter.nodes():
        if node.op in REDUCTIONS and (last := _reduced_first(node, graph)):
            x = node.inputs[0]
            attrs = {"dims": last, "keepdim": True}
            shape, dtype = OPS[node.op].check((graph.types[x],), attrs)
            to = TensorType(shape, dtype, graph.types[node.output].q)
            partial = rewriter.insert(node, node.op, (x,), attrs, to, f"{node.output}.partial")
            rewriter.replace(node, replace(node, inputs=(partial,)))
    rewriter.commit()


def _reduced_first(node: Node, graph: Graph) -> Shape:
    """The dimensions of the first dispatch, for the least elements that one result reads; none where one dispatch is
    enough."""
    shape, dims = graph.types[node.inputs[0]].shape, tuple(sorted(node.attrs["dims"]))
    count = math.prod(shape[d] for d in dims)
    if count < MANY_ELEMENTS or graph.types[node.output].numel > FEW_RESULTS:
        return ()
    # Kernels see the dimensions left of the last three as one.
    choices = [dims[i:] for i in range(1, len(dims)) if dims[i] >= len(shape) - 3]
    least, best = min(((_most(shape, count, last), last) for last in choices), default=(count, ()))
    return best if least < count else ()


def _most(shape: Shape, count: int, last: Shape) -> int:
    """The most elements that a result of either dispatch reads."""
    first = math.prod(shape[d] for d in last)
    return max(first, count // first)
