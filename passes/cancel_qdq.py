"""Removes dequantize -> quantize and dequantize -> to_int32."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import INT8X4, INT16X4, Graph, Node
from q8ta_wgpu.passes.rewriter import Rewriter


def cancel_qdq(graph: Graph) -> None:
    """quantize(dequantize(x)) becomes x. Where scale, zero point, dtype or range differ it becomes a requantization,
    which from int8 to int8 is a table. to_int32(dequantize(x)) becomes to_int32(x) where x is int8 of scale 1."""
    rewriter = Rewriter(graph)
    for node in rewriter.nodes():
        dequantize = rewriter.producer(node.inputs[0]) if node.op in ("quantize", "to_int32") else None
        if dequantize is None or dequantize.op != "dequantize":
            continue
        int8 = dequantize.inputs[0]
        before, after = graph.types[int8].q, graph.types[node.output].q
        if node.op == "to_int32":
            if before is not None and before.dtype == INT8X4 and before.scale == 1:
                rewriter.replace(node, replace(node, inputs=(int8,)))
            continue
        assert before is not None and after is not None
        lo, hi = node.attrs["lo"], node.attrs["hi"]
        if (before, lo, hi) == (after, *after.range) and not (int8 in graph.inputs and node.output in graph.outputs):
            rewriter.alias(node.output, int8)
            continue
        if INT16X4 in (before.dtype, after.dtype):
            if (factor := arithmetic.ratio(before, after)) is not None:
                attrs = {"multiplier": factor, "lo": lo, "hi": hi}
                rewriter.replace(node, Node("q8ta_requantize", (int8,), node.output, attrs, node.source))
            continue
        table = arithmetic.table(arithmetic.levels(before), after, lo, hi)
        if before == after:
            table = np.clip(np.arange(-128, 128), lo, hi).astype(np.int8)
        entries = graph.add_constant(f"{node.output}.table", table)
        rewriter.replace(node, Node("q8ta_table", (int8, entries), node.output, {}, node.source))
    rewriter.commit()
