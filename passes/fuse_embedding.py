"""Rows that are gathered from a table of int8, with a scale for each row, are read as int8."""

from __future__ import annotations

from dataclasses import replace

from q8ta_wgpu.ir.graph import INT8, Graph
from q8ta_wgpu.passes.rewriter import Rewriter


def fuse_embedding(graph: Graph) -> None:
    """Makes an embedding of a gather of a dequantized table, at any number of indices."""
    rewriter = Rewriter(graph)
    for node in rewriter.nodes():
        table = rewriter.producer(node.inputs[0]) if node.op == "gather" and not node.attrs["dim"] else None
        if table is None or table.op != "dequantize_weight" or table.attrs["axis"]:
            continue
        values, scale, zero = table.inputs
        is_table = len(graph.types[values].shape) == 2 and graph.types[values].dtype == INT8
        column = graph.types[node.inputs[1]].shape[1:] == (1,)
        if (
            is_table
            and column
            and all(name in graph.constants for name in table.inputs)
            and not graph.constants[zero].any()
        ):
            rewriter.replace(node, replace(node, op="embedding", inputs=(values, scale, node.inputs[1]), attrs={}))
    rewriter.commit()
