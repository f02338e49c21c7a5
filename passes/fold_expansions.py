"""Fuses the first two convolutions of an inverted residual: a depthwise convolution makes the image that it reads."""

from __future__ import annotations

from dataclasses import replace

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import Call, Graph, Node
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.kernels.conv2d.conv2d_expanded import POINTWISE, numbers
from q8ta_wgpu.kernels.epilogue.stages import Requantize
from q8ta_wgpu.kernels.lib.thresholds import FEW_MACS
from q8ta_wgpu.passes.fold_moves import CONVOLUTION, OWN
from q8ta_wgpu.passes.rewriter import Rewriter

EXPANDED = "q8ta_conv2d_expanded"


def fold_expansions(graph: Graph, target: Target) -> None:
    """Replaces a depthwise convolution and the 1x1 convolution whose only reader it is, where a kernel takes both."""
    rewriter = Rewriter(graph)
    for node in rewriter.nodes() if target.prologues else ():
        inner = rewriter.only_producer(node.inputs[0]) if node.op == CONVOLUTION else None
        if inner is None or inner.op != CONVOLUTION or not _pays(graph.call(inner)):
            continue
        if node.inputs.count(inner.output) > 1:  # what adds the image to its result needs it stored
            continue
        merged = _merged(graph, inner, node)
        try:
            OPS[EXPANDED].check(tuple(graph.types[name] for name in merged.inputs), merged.attrs)
        except GraphError:  # another window, or not depthwise
            continue
        if any(kernel.runs(graph.call(merged), target) for kernel in OPS[EXPANDED].kernels):
            rewriter.replace(node, merged)
    rewriter.commit()


def _pays(inner: Call) -> bool:
    """Whether it may pay to make the result of a convolution where it is read."""
    stages, window = inner.attrs["epilogue"].stages, {name: inner.attrs[name] for name in POINTWISE}
    plain = len(stages) == 1 and isinstance(stages[0], Requantize)
    return (
        plain
        and window == POINTWISE
        and inner.inputs[1].shape[2:] == (1, 1)
        and OPS[CONVOLUTION].macs(inner) <= FEW_MACS
    )


def _merged(graph: Graph, inner: Node, node: Node) -> Node:
    """The depthwise convolution that makes its image."""
    x, weight, *rounding = inner.inputs[:OWN]
    stored = graph.add_constant(f"{weight}.numbers", numbers(*(graph.constants[name] for name in rounding)))
    rounds, q = inner.attrs["epilogue"].stages[0], graph.types[inner.output].q
    assert q is not None
    attrs = {**node.attrs, "x_zero": q.zero, "x_lo": rounds.lo, "x_hi": rounds.hi}
    return replace(node, op=EXPANDED, inputs=(x, *node.inputs[1:OWN], weight, stored, *node.inputs[OWN:]), attrs=attrs)
