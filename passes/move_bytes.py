"""Takes operators that only move bytes (view, slice, cat, pixel_shuffle, max_pool2d ...) off the float side."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import Array, Graph, Node, QParams, TensorType
from q8ta_wgpu.ir.int8 import Elementwise, Moves
from q8ta_wgpu.kernels import OPS


def _fill(node: Node) -> Array | None:
    kind = OPS[node.op].int8
    fills = isinstance(kind, Moves) and kind.fill
    return np.array([fills(node.attrs)], np.float32) if fills else None


def _sinks(node: Node, q: QParams | None) -> bool:
    """Whether the value a pad writes is one that int8 at `q` holds exactly: if not, moving it there would change it."""
    fill = _fill(node)
    if fill is None or q is None:
        return True
    return bool(np.array_equal(arithmetic.dequantize(arithmetic.quantize(fill, q), q), fill))


def _hoists(node: Node, quantize: Node, q: QParams | None) -> bool:
    """Whether the value a pad writes is within the quantize's own range, which the pad does not know."""
    fill = _fill(node)
    if fill is None or q is None:
        return True
    bounded = arithmetic.quantize(fill, q, quantize.attrs["lo"], quantize.attrs["hi"])
    return bool(np.array_equal(bounded, arithmetic.quantize(fill, q)))


def sink_dequantize(graph: Graph) -> None:
    """move(dequantize(x), ...) becomes dequantize(move(x, ...)) where all inputs have one scale and zero point."""
    producers = graph.producers()
    nodes: list[Node] = []
    for node in graph.nodes:
        sources = [producers.get(name) for name in node.inputs]
        int8 = [s.inputs[0] for s in sources if s is not None and s.op == "dequantize"]
        if (
            not OPS[node.op].keeps_int8
            or len(int8) != len(node.inputs)
            or len({graph.types[i].q for i in int8}) != 1
            or not _sinks(node, graph.types[int8[0]].q)
        ):
            nodes.append(node)
            continue
        moved = graph.fresh(f"{node.output}.int8")
        graph.types[moved] = TensorType(graph.types[node.output].shape, "int8x4", graph.types[int8[0]].q)
        sunk = Node("dequantize", (moved,), node.output, {}, node.source)
        producers[node.output] = sunk
        nodes += [replace(node, inputs=tuple(int8), output=moved), sunk]
    graph.nodes = nodes


def sink_moves(graph: Graph) -> None:
    """unary(move(x)) becomes move(unary(x)): a view between a linear and its activation must not part them.

    Only where nothing else reads the moved value and x is computed in float.
    """
    swapped = True
    while swapped:
        swapped = False
        users, producers = graph.users(), graph.producers()
        for node in graph.nodes:
            move = producers.get(node.inputs[0]) if isinstance(OPS[node.op].int8, Elementwise) else None
            if (
                move is None
                or not isinstance(OPS[move.op].int8, Moves)
                or _fill(move) is not None
                or len(move.inputs) != 1
            ):
                continue
            source = producers.get(move.inputs[0])
            alone = len(users[move.output]) == 1 and move.output not in graph.outputs
            if not alone or source is None or source.op in ("quantize", "dequantize", "dequantize_weight"):
                continue
            activated = graph.fresh(f"{node.output}.unmoved")
            graph.types[activated] = graph.types[move.inputs[0]]
            at = graph.nodes.index(node)
            graph.nodes[at : at + 1] = [
                replace(node, inputs=(move.inputs[0], *node.inputs[1:]), output=activated),
                replace(move, inputs=(activated,), output=node.output),
            ]
            graph.nodes.remove(move)
            swapped = True
            break


def hoist_quantize(graph: Graph) -> None:
    """quantize(move(x, ...)) becomes move(quantize(x), ...) where nothing else reads the moved float value."""
    users = graph.users()
    nodes: list[Node] = []
    for node in reversed(graph.nodes):
        readers = users[node.output]
        if (
            not OPS[node.op].keeps_int8
            or node.output in graph.outputs
            or len(readers) != 1
            or readers[0].op != "quantize"
            or not _hoists(node, readers[0], graph.types[readers[0].output].q)
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
