"""Computes nodes whose inputs are all constants."""

from __future__ import annotations

import numpy as np

from q8ta_wgpu.ir.graph import Array, Graph, Node
from q8ta_wgpu.ir.int8 import Moves
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.passes.rewriter import Rewriter

_WEIGHTS = ("dequantize", "dequantize_weight")


def fold_constants(graph: Graph) -> None:
    """Replaces nodes with constant inputs by their value, and moves of a quantized weight by a moved weight.

    Dequantized constants stay, since an int8 operator may read the int8 constant before them.
    """
    rewriter = Rewriter(graph)
    for node in rewriter.nodes():
        constant = _reads_constants(graph, node)
        if constant and node.op not in _WEIGHTS:
            rewriter.make_constant(node, _value(graph, node))
        elif not constant and OPS[node.op].int8 == Moves() and len(node.inputs) == 1:
            weight = rewriter.producer(node.inputs[0])
            is_weight = weight is not None and weight.op in _WEIGHTS and _reads_constants(graph, weight)
            if weight is not None and is_weight and (moved := _moved(graph, node, weight)):
                rewriter.replace(node, moved)
    rewriter.commit()


def fold_weights(graph: Graph) -> None:
    """Replaces every node with constant inputs by its value, dequantized weights included."""
    rewriter = Rewriter(graph)
    for node in rewriter.nodes():
        if _reads_constants(graph, node):
            rewriter.make_constant(node, _value(graph, node))
    rewriter.commit()


def _reads_constants(graph: Graph, node: Node) -> bool:
    return all(name in graph.constants for name in node.inputs)


def _value(graph: Graph, node: Node) -> Array:
    return np.asarray(OPS[node.op].reference(graph.call(node), [graph.constants[name] for name in node.inputs]))


def _moved(graph: Graph, node: Node, weight: Node) -> Node | None:
    """The dequantize of a weight whose values are moved, in place of a move of the dequantized weight. Scales per
    channel must still lie along one axis, each once or repeated; else None."""
    if weight.op == "dequantize":
        t = graph.types[weight.inputs[0]]
        values = _move(graph, node, graph.constants[weight.inputs[0]])
        moved = graph.add_constant(f"{weight.inputs[0]}.moved", values, t.dtype, t.q)
        return Node("dequantize", (moved,), node.output, {}, node.source)
    values, axis = graph.constants[weight.inputs[0]], weight.attrs["axis"]
    shape = [-1 if i == axis else 1 for i in range(values.ndim)]
    channel = np.broadcast_to(np.arange(values.shape[axis]).reshape(shape), values.shape)
    moved_channel = _move(graph, node, np.ascontiguousarray(channel))
    lines = _lines(moved_channel)
    if not lines:
        return None
    whole = [i for i, line in lines.items() if np.array_equal(line, np.arange(values.shape[axis]))]
    moved_axis = (whole or list(lines))[0]
    moved = graph.add_constant(f"{weight.inputs[0]}.moved", _move(graph, node, values))
    qparams = weight.inputs[1:]
    if not whole:
        qparams = tuple(
            graph.add_constant(f"{name}.moved", graph.constants[name][lines[moved_axis]]) for name in qparams
        )
    return Node("dequantize_weight", (moved, *qparams), node.output, {"axis": moved_axis}, node.source)


def _lines(channel: Array) -> dict[int, Array]:
    """The axes such that the array varies along no other one, each with the array's entries along it."""
    lines = {}
    for axis in range(channel.ndim):
        line = channel[tuple(slice(None) if i == axis else slice(1) for i in range(channel.ndim))]
        if np.array_equal(channel, np.broadcast_to(line, channel.shape)):
            lines[axis] = line.reshape(-1)
    return lines


def _move(graph: Graph, node: Node, array: Array) -> Array:
    return np.asarray(OPS[node.op].reference(graph.call(node), [array]), order="C")
