"""Folds tables: identities vanish, clamps join their producer's range, a table of a table is one table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from q8ta_wgpu.ir.graph import Array, Attrs, Graph, Node, QParams
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.passes.rewriter import Rewriter


def _clamp(table: Array, q: QParams) -> tuple[int, int] | None:
    """(lo, hi) if the table of values of a quantization is clip(x, lo, hi)."""
    lo, hi = int(table[0]), int(table[-1])
    low, high = q.range
    same = lo <= hi and np.array_equal(table, np.clip(np.arange(low, high + 1), lo, hi))
    return (lo, hi) if same else None


def _clamped(node: Node, low: int, high: int) -> Attrs | None:
    """The attributes of a node that clamps its result to [low, high] as well, None where it has no range."""
    if "epilogue" in node.attrs:
        epilogue = node.attrs["epilogue"].clamped(low, high)
        return {**node.attrs, "epilogue": epilogue} if epilogue else None
    if not {"lo", "hi"} <= set(OPS[node.op].schema):
        return None
    return {**node.attrs, **{name: int(np.clip(node.attrs[name], low, high)) for name in ("lo", "hi")}}


def fold_tables(graph: Graph) -> None:
    """Applies the three rules in one sweep; a producer is changed only where the table is its only reader."""
    rewriter = Rewriter(graph)
    for node in rewriter.nodes():
        if node.op != "q8ta_table":
            continue
        source, table = node.inputs[0], graph.constants[node.inputs[1]]
        q = graph.types[source].q
        bounds = _clamp(table, q) if q is not None and q == graph.types[node.output].q else None
        producer = rewriter.only_producer(source)
        if q is not None and bounds == q.range and not (source in graph.inputs and node.output in graph.outputs):
            rewriter.alias(node.output, source)
        elif producer is None:
            continue
        elif bounds and (attrs := _clamped(producer, *bounds)):
            rewriter.replace(node, replace(producer, attrs=attrs))
        elif producer.op == "q8ta_table" and q is not None:
            first = graph.constants[producer.inputs[1]]
            entries = graph.add_constant(f"{node.output}.table", table[first.astype(np.int64) - q.range[0]])
            rewriter.replace(node, replace(producer, inputs=(producer.inputs[0], entries)))
    rewriter.commit()
