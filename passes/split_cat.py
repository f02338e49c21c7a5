"""Splits a cat of more tensors than a dispatch can bind into a tree of cats."""

from __future__ import annotations

from dataclasses import replace

from q8ta_wgpu.ir.graph import Graph, Node, TensorType
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.kernels.move.cat import MAX_INPUTS


def split_cat(graph: Graph, target: Target) -> None:
    """Replaces cat(x0 ... xn) by cats of as many inputs as its kernels and the target's storage buffers, of which one
    is the result's, allow: in order, until one is left."""
    limit = min(MAX_INPUTS, target.storage_buffers - 1)
    nodes: list[Node] = []
    for node in graph.nodes:
        while node.op == "cat" and len(node.inputs) > limit:
            parts = []
            for start in range(0, len(node.inputs), limit):
                group = node.inputs[start : start + limit]
                if len(group) == 1:
                    parts.append(group[0])
                    continue
                part = graph.fresh(f"{node.output}.part")
                types = tuple(graph.types[name] for name in group)
                shape, dtype = OPS["cat"].check(types, node.attrs)
                graph.types[part] = TensorType(shape, dtype, types[0].q)
                nodes.append(Node("cat", group, part, node.attrs, node.source))
                parts.append(part)
            node = replace(node, inputs=tuple(parts))
        nodes.append(node)
    graph.nodes = nodes
