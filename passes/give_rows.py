"""Returns uint8 results in row-major order, so that the host need not reorder them.

Reordering an image from blocks of channels takes the host longer than a device takes for the network.
"""

from __future__ import annotations

from q8ta_wgpu.ir.graph import UINT8, Graph, Node
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels.move.view import LEFT
from q8ta_wgpu.passes.rewriter import Rewriter


def give_rows(graph: Graph, target: Target) -> None:
    """Inserts a view before each uint8 result: a view's result is row-major, and costs nothing where its operand is.
    Other readers of the result read the operand of the view."""
    rewriter = Rewriter(graph)
    for name in dict.fromkeys(graph.outputs):
        node, t = rewriter.producer(name), graph.types[name]
        if node is None or t.q != UINT8 or node.op in ("view", "permute"):
            continue
        stored = rewriter.insert(node, node.op, node.inputs, node.attrs, f"{name}.stored", t.q)
        for reader in rewriter.readers(name):
            rewriter.read(reader, name, stored)
        rewriter.replace(node, Node("view", (stored,), name, {"shape": [LEFT] * len(t.shape)}, node.source))
    rewriter.commit()
