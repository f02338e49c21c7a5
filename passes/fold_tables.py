"""Folds tables (q8ta_table, a function of one int8 value as 256 entries).

* An identity vanishes, and a clamp becomes the range of its producer.
* A table of a table becomes one table.
* A sum or product of tables of one value becomes one table: x·sigmoid(x), rounded in between, is a table of x.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from q8ta_wgpu.ir.graph import BOOL, INT8X4, Array, Attrs, Graph, Node, QParams
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.passes.rewriter import Rewriter


def _clamp(table: Array, q: QParams) -> tuple[int, int] | None:
    """(lo, hi) if a table over a quantization's range is clip(x, lo, hi); else None."""
    lo, hi = int(table[0]), int(table[-1])
    low, high = q.range
    same = lo <= hi and np.array_equal(table, np.clip(np.arange(low, high + 1), lo, hi))
    return (lo, hi) if same else None


def _clamped(node: Node, low: int, high: int) -> Attrs | None:
    """A node's attributes, with its result also clamped to [low, high]; None where it has no range."""
    if "epilogue" in node.attrs:
        epilogue = node.attrs["epilogue"].clamped(low, high)
        return {**node.attrs, "epilogue": epilogue} if epilogue else None
    if not {"lo", "hi"} <= set(OPS[node.op].schema):
        return None
    return {**node.attrs, **{name: int(np.clip(node.attrs[name], low, high)) for name in ("lo", "hi")}}


def _as_table(graph: Graph, rewriter: Rewriter, node: Node) -> Node:
    """Replaces a sum or product of tables of one int8 value, or of that value itself, by a table; returns the node."""
    if node.op not in ("q8ta_add", "q8ta_mul") or graph.types[node.output].dtype != INT8X4:
        return node
    tables = [p if (p := rewriter.producer(name)) and p.op == "q8ta_table" else None for name in node.inputs]
    roots = {name if t is None else t.inputs[0] for name, t in zip(node.inputs, tables, strict=True)}
    root = graph.types[next(iter(roots))]
    if not any(tables) or len(roots) > 1 or root.dtype != INT8X4 or root.q in (None, BOOL):
        return node
    every = np.arange(-128, 128, dtype=np.int8)
    values = [every if t is None else graph.constants[t.inputs[1]].reshape(-1) for t in tables]
    entries = OPS[node.op].reference(graph.call(node), values)
    name = graph.add_constant(f"{node.output}.table", np.asarray(entries, np.int8))
    return rewriter.replace(node, Node("q8ta_table", (roots.pop(), name), node.output, {}, node.source))


def fold_tables(graph: Graph) -> None:
    """Applies all rules in one sweep. A producer is changed only where the table is its only reader."""
    rewriter = Rewriter(graph)
    for each in rewriter.nodes():
        node = _as_table(graph, rewriter, each)
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
