"""Fuses the gather of rows from a quantized table, of 16, 8 or 4 bits with a scale per row, into an embedding."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from q8ta_wgpu.ir import bits
from q8ta_wgpu.ir.graph import Graph, Node
from q8ta_wgpu.passes.rewriter import Rewriter


def fuse_embedding(graph: Graph) -> None:
    """Replaces gather(dequantize_weight(table), indices) by embedding(table, scales, indices)."""
    rewriter = Rewriter(graph)
    for node in rewriter.nodes():
        table = rewriter.producer(node.inputs[0]) if node.op == "gather" and not node.attrs["dim"] else None
        if table is None or table.op != "dequantize_weight" or table.attrs["axis"]:
            continue
        values, scale, zero = table.inputs
        column = graph.types[node.inputs[1]].shape[1:] == (1,)
        constant = all(name in graph.constants for name in table.inputs) and not graph.constants[zero].any()
        rows = _stored(graph, values) if column and constant else None
        if rows is not None:
            rewriter.replace(node, _embedding(node, rows, scale))
    rewriter.commit()


def _embedding(node: Node, rows: str, scale: str) -> Node:
    attrs = {"from_end": node.attrs["from_end"]}
    return replace(node, op="embedding", inputs=(rows, scale, node.inputs[1]), attrs=attrs)


def _stored(graph: Graph, values: str) -> str | None:
    """The name of a table's rows as an embedding reads them, int16 as 4 bits where they are; None where it is no
    matrix."""
    table = graph.constants[values]
    if table.ndim != 2:
        return None
    packed = bits.pack(table, whole=True) if table.dtype == np.int16 else None
    return values if packed is None else graph.add_constant(f"{values}.bits", packed)
