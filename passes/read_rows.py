"""Scales of rows, chosen at run time, are computed from stored integers instead of dequantized ones."""

from __future__ import annotations

from dataclasses import replace

from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import INT16X4, Graph
from q8ta_wgpu.passes.operands import int8_behind
from q8ta_wgpu.passes.rewriter import Rewriter


def read_rows(graph: Graph) -> None:
    """row_scale(dequantize(x)) and quantize_rows(dequantize(x), scale) read x where it is int16."""
    rewriter = Rewriter(graph)
    for node in rewriter.nodes():
        stored = int8_behind(rewriter, node.inputs[0]) if node.op in ("row_scale", "quantize_rows") else None
        if stored is not None and graph.types[stored].dtype == INT16X4:
            rewriter.replace(node, replace(node, inputs=(stored, *node.inputs[1:])))
            if node.op == "quantize_rows":
                graph.types[node.output] = replace(
                    graph.types[node.output], q=arithmetic.row_unit(graph.types[stored].q)
                )
    rewriter.commit()
