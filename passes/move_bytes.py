"""Takes operators that only move bytes (view, slice, cat, pixel_shuffle, max_pool2d ...) off the float side."""

from __future__ import annotations

from dataclasses import replace

from q8ta_wgpu.ir import Graph, Node, TensorType
from q8ta_wgpu.kernels import OPS


def sink_dequantize(graph: Graph) -> None:
    """move(dequantize(x), ...) becomes dequantize(move(x, ...)) where all inputs have one scale and zero point."""
    producers = graph.producers()
    nodes: list[Node] = []
    for node in graph.nodes:
        sources = [producers.get(name) for name in node.inputs]
        int8 = [s.inputs[0] for s in sources if s is not None and s.op == "dequantize"]
        if not OPS[node.op].keeps_int8 or len(int8) != len(node.inputs) or len({graph.types[i].q for i in int8}) != 1:
            nodes.append(node)
            continue
        moved = graph.fresh(f"{node.output}.int8")
        graph.types[moved] = TensorType(graph.types[node.output].shape, "int8x4", graph.types[int8[0]].q)
        sunk = Node("dequantize", (moved,), node.output, {}, node.source)
        producers[node.output] = sunk
        nodes += [replace(node, inputs=tuple(int8), output=moved), sunk]
    graph.nodes = nodes


def hoist_quantize(graph: Graph) -> None:
    """quantize(move(x, ...)) becomes move(quantize(x), ...) where nothing else reads the moved float value."""
    users = graph.users()
    nodes: list[Node] = []
    skipped: set[str] = set()
    for node in reversed(graph.nodes):
        if node.output in skipped:
            continue
        readers = users[node.output]
        if (
            not OPS[node.op].keeps_int8
            or node.output in graph.outputs
            or len(readers) != 1
            or readers[0].op != "quantize"
        ):
            nodes.append(node)
            continue
        quantize = readers[0]
        q = graph.types[quantize.output].q
        hoisted: list[Node] = []
        for name in dict.fromkeys(node.inputs):
            int8 = graph.fresh(f"{name}.int8")
            graph.types[int8] = TensorType(graph.types[name].shape, "int8x4", q)
            hoisted.append(Node("quantize", (name,), int8, quantize.attrs, quantize.source))
            users[name] = [hoisted[-1] if reader is node else reader for reader in users[name]]
        by_name = {h.inputs[0]: h.output for h in hoisted}
        moved = replace(node, inputs=tuple(by_name[i] for i in node.inputs), output=quantize.output)
        nodes[nodes.index(quantize)] = moved
        # The new quantizes are the only readers of their inputs if `node` was, so a chain of moves hoists in one sweep.
        nodes += hoisted[::-1]
    graph.nodes = nodes[::-1]
