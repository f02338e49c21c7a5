"""Folds the halves of int16 values into the linears that read them: they are taken while rows are loaded."""

from __future__ import annotations

import math
from dataclasses import replace

from q8ta_wgpu.ir.graph import Graph
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.passes.rewriter import Rewriter

FEW_ROWS = 8
"""Rows up to which a linear is a product of a matrix and a few vectors, whose kernel takes no halves."""


def fold_halves(graph: Graph, target: Target) -> None:
    """Makes q16ta_half -> q8ta_linear one q16ta_linear. A CPU takes a half once rather than in every tile."""
    rewriter = Rewriter(graph)
    for node in rewriter.nodes() if not target.few_cores else ():
        half = rewriter.producer(node.inputs[0]) if node.op == "q8ta_linear" else None
        if half is not None and half.op == "q16ta_half" and math.prod(graph.types[node.output].shape[:-1]) > FEW_ROWS:
            attrs = {**node.attrs, "part": half.attrs["part"]}
            rewriter.replace(
                node, replace(node, op="q16ta_linear", inputs=(*half.inputs, *node.inputs[1:]), attrs=attrs)
            )
    rewriter.commit()
