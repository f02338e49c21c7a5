"""Stores the parts of a weighted sum that have scales of their own as one int8 tensor.

Queries, keys and values of one linear are quantized each by itself, behind the moves that take them apart. Weight and
bias of each channel are divided by its part's scale, so that the sum counts steps and all of it is rounded at scale 1;
each part is then viewed at its own scale.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from q8ta_wgpu.ir.graph import INT8X4, Array, Graph, Node, QParams, TensorType
from q8ta_wgpu.ir.int8 import Moves
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.kernels.move.view import LEFT
from q8ta_wgpu.passes.rewriter import Rewriter

_CHANNELS = {"linear": -1, "conv2d": 1}
"""The dimension of a result along which weight and bias have a row and a number each."""


@dataclass(frozen=True)
class _Part:
    """A quantize that reads some channels of a sum, moved."""

    quantize: Node
    q: QParams
    channels: Array


def scale_parts(graph: Graph) -> None:
    """Rounds at one scale each weighted sum of which quantizes alone read, several of them, each channels of its own
    and int8 of the same range."""
    rewriter = Rewriter(graph)
    for node in rewriter.nodes():
        weight = rewriter.producer(node.inputs[1]) if node.op in _CHANNELS else None
        if weight is None or weight.op != "dequantize_weight" or weight.attrs["axis"] or node.output in graph.kept:
            continue
        shape, axis = graph.types[node.output].shape, _CHANNELS[node.op]
        channel = np.indices(shape, np.int32, sparse=True)[axis]
        parts = _parts(rewriter, node.output, np.broadcast_to(channel, shape))
        if parts and _fit(graph, parts) and node.inputs[2] in graph.constants:
            _store(rewriter, node, weight, parts)
    rewriter.commit()


def _parts(rewriter: Rewriter, name: str, channel: Array) -> list[_Part] | None:
    """What reads a value in which each element is from a `channel`; None where that is no quantize, or only moves."""
    graph, found = rewriter.graph, list[_Part]()
    for reader in rewriter.readers(name):
        q = graph.types[reader.output].q
        if reader.op == "quantize" and q is not None:
            found.append(_Part(reader, q, np.unique(channel)))
        elif OPS[reader.op].int8 == Moves() and len(reader.inputs) == 1:
            moved = np.asarray(OPS[reader.op].reference(graph.call(reader), [channel]))
            parts = _parts(rewriter, reader.output, moved)
            if parts is None:
                return None
            found += parts
        else:
            return None
    return None if name in graph.outputs else found


def _fit(graph: Graph, parts: list[_Part]) -> bool:
    """Whether parts are of several scales, no channel is of two, and all are clamped alike."""
    taken = np.concatenate([np.unique(np.concatenate([p.channels for p in parts if p.q == q])) for q in _scales(parts)])
    ranges = {(part.quantize.attrs["lo"], part.quantize.attrs["hi"], part.q.dtype) for part in parts}
    return len(_scales(parts)) > 1 and len(np.unique(taken)) == len(taken) and ranges == {(-128, 127, INT8X4)}


def _scales(parts: list[_Part]) -> list[QParams]:
    return list(dict.fromkeys(part.q for part in parts))


def _store(rewriter: Rewriter, node: Node, weight: Node, parts: list[_Part]) -> None:
    """Lets the sum count the steps of its parts, quantizes it as they are, and lets the parts be views of it."""
    graph, joint = rewriter.graph, QParams(1.0, parts[0].q.zero)
    values, scale, zero = weight.inputs
    factor, term = np.ones(graph.types[scale].shape), np.zeros(graph.types[scale].shape)
    for part in parts:
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
    attrs = parts[0].quantize.attrs
    stored = rewriter.insert(node, "quantize", (sums,), attrs, TensorType(real.shape, INT8X4, joint), f"{name}.joint")
    rewriter.replace(node, Node("dequantize", (stored,), name, {}, node.source))
    for part in parts:
        shape = graph.types[part.quantize.output].shape
        int8 = rewriter.insert(
            part.quantize, "quantize", part.quantize.inputs, attrs, TensorType(shape, INT8X4, joint), f"{name}.part"
        )
        view = Node("view", (int8,), part.quantize.output, {"shape": [LEFT] * len(shape)}, part.quantize.source)
        rewriter.replace(part.quantize, view)
