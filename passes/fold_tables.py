"""Folds 256-entry tables: identities vanish, clamps join their producer's range, a table of a table is one table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from q8ta_wgpu.ir.graph import Array, Graph, Node
from q8ta_wgpu.kernels import OPS

_IDENTITY = np.arange(-128, 128)


def _clamp(table: Array) -> tuple[int, int] | None:
    """(lo, hi) if the table is clip(x, lo, hi)."""
    lo, hi = int(table[0]), int(table[-1])
    return (lo, hi) if lo <= hi and np.array_equal(table, np.clip(_IDENTITY, lo, hi)) else None


def fold_tables(graph: Graph) -> None:
    """Applies the three rules in one sweep; a producer is changed only where the table is its only reader."""
    users = {name: len(found) for name, found in graph.users().items()}
    index = {node.output: i for i, node in enumerate(graph.nodes)}
    nodes: list[Node | None] = list(graph.nodes)
    renamed: dict[str, str] = {}
    for i, node in enumerate(graph.nodes):
        node = replace(node, inputs=tuple(renamed.get(name, name) for name in node.inputs))
        nodes[i] = node
        if node.op != "q8ta_table":
            continue
        table, source = graph.constants[node.inputs[1]], node.inputs[0]
        same = graph.types[source].q == graph.types[node.output].q
        bounds = _clamp(table) if same else None
        if bounds == (-128, 127) and node.output not in graph.outputs:
            renamed[node.output] = source
            users[source] += users[node.output] - 1
            nodes[i] = None
            continue
        producer = nodes[index[source]] if source in index else None
        if producer is None or users[source] != 1 or source in graph.outputs:
            continue
        if bounds and {"lo", "hi"} <= set(OPS[producer.op].schema):
            limits = [int(np.clip(producer.attrs[k], *bounds)) for k in ("lo", "hi")]
            merged = replace(producer, attrs={**producer.attrs, "lo": limits[0], "hi": limits[1]}, output=node.output)
        elif bounds == (-128, 127):
            merged = replace(producer, output=node.output)
        elif producer.op == "q8ta_table":
            first = graph.constants[producer.inputs[1]]
            entries = graph.add_constant(f"{node.output}.table", table[first.astype(np.int64) + 128])
            merged = replace(producer, inputs=(producer.inputs[0], entries), output=node.output)
        else:
            continue
        nodes[index[source]], nodes[i] = None, merged
    graph.nodes = [node for node in nodes if node is not None]
