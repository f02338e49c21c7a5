"""Stores the slices of a weighted sum that have scales of their own as one int8 tensor.

Queries, keys and values of one linear are quantized each by itself, behind the moves that take them apart. Weight and
bias of each channel are divided by its slice's scale, so that the sum counts steps and all of it is rounded at scale 1;
each slice is then viewed at its own scale.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from q8ta_wgpu.ir.graph import INT8X4, Array, Graph, Node, QParams, TensorType
from q8ta_wgpu.kernels.move.view import LEFT
from q8ta_wgpu.passes.plan.regions import is_move
from q8ta_wgpu.passes.plan.slices import CHANNELS, slices_of
from q8ta_wgpu.passes.rewriter import Rewriter


@dataclass(frozen=True)
class _Stored:
    """A quantize that reads a slice, and the channels of the sum that are in it."""

    quantize: Node
    q: QParams
    channels: Array


def scale_slices(graph: Graph) -> None:
    """Rounds at one scale each weighted sum of whose slices quantizes alone read, each to int8 of the same range."""
    rewriter = Rewriter(graph)
    for node in rewriter.nodes():
        weight = rewriter.producer(node.inputs[1]) if node.op in CHANNELS else None
        if weight is None or weight.op != "dequantize_weight" or weight.attrs["axis"] or node.output in graph.in_float:
            continue
        slices = _stored(rewriter, node)
        if slices and _fit(slices) and node.inputs[2] in graph.constants:
            _store(rewriter, node, weight, slices)
    rewriter.commit()


def _stored(rewriter: Rewriter, node: Node) -> list[_Stored]:
    """The quantizes that read the slices of a sum, moved or not; none where anything else reads one."""
    found = list[_Stored]()
    for part in slices_of(rewriter, node):
        waiting = [part.value]
        while waiting:
            name = waiting.pop()
            if name in rewriter.graph.outputs:
                return []
            for reader in rewriter.readers(name):
                q = rewriter.graph.types[reader.output].q
                if is_move(reader):
                    waiting.append(reader.output)
                elif reader.op != "quantize" or q is None:
                    return []
                else:
                    found.append(_Stored(reader, q, part.channels))
    return found


def _fit(slices: list[_Stored]) -> bool:
    """Whether slices are of several scales, no channel is of two, and all are clamped alike."""
    by_channels: dict[bytes, QParams] = {}
    if any(by_channels.setdefault(part.channels.tobytes(), part.q) != part.q for part in slices):
        return False
    ranges = {(part.quantize.attrs["lo"], part.quantize.attrs["hi"], part.q.dtype) for part in slices}
    return len({part.q for part in slices}) > 1 and ranges == {(-128, 127, INT8X4)}


def _store(rewriter: Rewriter, node: Node, weight: Node, slices: list[_Stored]) -> None:
    """Lets the sum count the steps of its slices, quantizes it as they are, and lets the slices be views of it."""
    graph, joint = rewriter.graph, QParams(1.0, slices[0].q.zero)
    values, scale, zero = weight.inputs
    factor, term = np.ones(graph.types[scale].shape), np.zeros(graph.types[scale].shape)
    for part in slices:
        factor[part.channels] = 1.0 / part.q.scale
        term[part.channels] = part.q.zero - joint.zero
    scales = graph.add_constant(f"{scale}.joint", (graph.constants[scale] * factor).astype(np.float32))
    bias = (graph.constants[node.inputs[2]] * factor + term).astype(np.float32)
    real, name = graph.types[node.output], node.output
    scaled = rewriter.insert(
        node, weight.op, (values, scales, zero), weight.attrs, graph.types[weight.output], f"{weight.output}.joint"
    )
    inputs = (node.inputs[0], scaled, graph.add_constant(f"{node.inputs[2]}.joint", bias))
    sums = rewriter.insert(node, node.op, inputs, node.attrs, real, f"{name}.sums")
    attrs = slices[0].quantize.attrs
    stored = rewriter.insert(node, "quantize", (sums,), attrs, TensorType(real.shape, INT8X4, joint), f"{name}.joint")
    rewriter.replace(node, Node("dequantize", (stored,), name, {}, node.source))
    for part in slices:
        shape = graph.types[part.quantize.output].shape
        int8 = rewriter.insert(
            part.quantize, "quantize", part.quantize.inputs, attrs, TensorType(shape, INT8X4, joint), f"{name}.slice"
        )
        view = Node("view", (int8,), part.quantize.output, {"shape": [LEFT] * len(shape)}, part.quantize.source)
        rewriter.replace(part.quantize, view)
