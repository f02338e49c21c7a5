"""Removes what is left of dequantize -> quantize: nothing if the scales agree, a 256-entry table otherwise."""

from __future__ import annotations

import numpy as np

from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import Graph, Node


def cancel_qdq(graph: Graph) -> None:
    """quantize(dequantize(x)) becomes x, or a requantizing table where scale, zero point or range differ."""
    producers = graph.producers()
    nodes: list[Node] = []
    for node in graph.nodes:
        source = producers.get(node.inputs[0]) if node.op == "quantize" else None
        if source is None or source.op != "dequantize":
            nodes.append(node)
            continue
        before, after = graph.types[source.inputs[0]].q, graph.types[node.output].q
        assert before is not None and after is not None
        values = arithmetic.levels(before)
        table = arithmetic.table(values, after, node.attrs["lo"], node.attrs["hi"])
        if before == after:
            table = np.clip(np.arange(-128, 128), node.attrs["lo"], node.attrs["hi"]).astype(np.int8)
        entries = graph.add_constant(f"{node.output}.table", table)
        nodes.append(Node("q8ta_table", (source.inputs[0], entries), node.output, {}, node.source))
    graph.nodes = nodes
