"""Splits a cat of more tensors than a dispatch can bind into a tree of cats."""

from __future__ import annotations

from dataclasses import replace

from q8ta_wgpu.ir.graph import Graph, Node, TensorType
from q8ta_wgpu.ir.target import BASELINE
from q8ta_wgpu.kernels import OPS

LIMIT = BASELINE.storage_buffers - 1
"""Inputs of one cat: WebGPU's guaranteed storage buffers, one of them the result's."""


def split_cat(graph: Graph) -> None:
    """Replaces cat(x0 ... xn) by cats of at most LIMIT inputs, in order, until one is left."""
    nodes: list[Node] = []
    for node in graph.nodes:
        while node.op == "cat" and len(node.inputs) > LIMIT:
            parts = []
            for start in range(0, len(node.inputs), LIMIT):
                group = node.inputs[start : start + LIMIT]
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
