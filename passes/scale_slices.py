"""Stores slices of a weighted sum, each with a scale of its own, as one int8 or int16 tensor.

Queries, keys and values of one linear are sliced first and quantized then, each at its own scale. This pass divides
weight and bias of each channel by the scale of its slice. The whole result is then rounded at scale 1 and sliced, and
each slice is viewed at its own scale.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from q8ta_wgpu.ir.graph import RANGES, Array, Graph, Node, QParams
from q8ta_wgpu.kernels.move.view import LEFT
from q8ta_wgpu.passes.plan.regions import is_move
from q8ta_wgpu.passes.plan.slices import CHANNELS, slices_of
from q8ta_wgpu.passes.rewriter import Rewriter


@dataclass(frozen=True)
class _Stored:
    """A quantize that reads a slice, its quantization, and the indices of the slice's channels in the sum."""

    quantize: Node
    q: QParams
    channels: Array


def scale_slices(graph: Graph) -> None:
    """Rewrites each weighted sum whose slices only quantizes read, to integers of the full range, of one width and
    different scales."""
    rewriter = Rewriter(graph)
    for node in rewriter.nodes():
        weight = rewriter.producer(node.inputs[1]) if node.op in CHANNELS else None
        if weight is None or weight.op != "dequantize_weight" or weight.attrs["axis"]:
            continue
        if graph.values[node.output].in_float:
            continue
        slices = _stored(rewriter, node)
        if slices and _fit(slices) and node.inputs[2] in graph.constants:
            _store(rewriter, node, weight, slices)
    rewriter.commit()


def _stored(rewriter: Rewriter, node: Node) -> list[_Stored]:
    """The quantizes that read the slices of a sum, moved or not; an empty list where anything else reads a slice."""
    found = list[_Stored]()
    for each in slices_of(rewriter, node):
        waiting = [each.value]
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
                    found.append(_Stored(reader, q, each.channels))
    return found


def _fit(slices: list[_Stored]) -> bool:
    """Whether slices have different quantizations, but no channel has two, and all are int8, or all int16, in the
    full range."""
    by_channels: dict[bytes, QParams] = {}
    if any(by_channels.setdefault(s.channels.tobytes(), s.q) != s.q for s in slices):
        return False
    ranges = {(s.quantize.attrs["lo"], s.quantize.attrs["hi"]) for s in slices}
    widths = {s.q.dtype for s in slices}
    return len({s.q for s in slices}) > 1 and len(widths) == 1 and ranges == {RANGES[dtype] for dtype in widths}


def _store(rewriter: Rewriter, node: Node, weight: Node, slices: list[_Stored]) -> None:
    """Scales the sum so that its result is in steps of the slices, quantizes it at scale 1, and slices that."""
    graph, joint = rewriter.graph, QParams(1.0, slices[0].q.zero, slices[0].q.dtype)
    values, scale, zero = weight.inputs
    factor, term = np.ones(graph.types[scale].shape), np.zeros(graph.types[scale].shape)
    for each in slices:
        factor[each.channels] = 1.0 / each.q.scale
        term[each.channels] = each.q.zero - joint.zero
    scales = graph.add_constant(f"{scale}.joint", (graph.constants[scale] * factor).astype(np.float32))
    bias = (graph.constants[node.inputs[2]] * factor + term).astype(np.float32)
    name = node.output
    scaled = rewriter.insert(node, weight.op, (values, scales, zero), weight.attrs, f"{weight.output}.joint")
    inputs = (node.inputs[0], scaled, graph.add_constant(f"{node.inputs[2]}.joint", bias))
    sums = rewriter.insert(node, node.op, inputs, node.attrs, f"{name}.sums")
    attrs = slices[0].quantize.attrs
    stored = rewriter.insert(node, "quantize", (sums,), attrs, f"{name}.joint", joint)
    rewriter.replace(node, Node("dequantize", (stored,), name, {}, node.source))
    for quantize in (each.quantize for each in slices):
        stored = rewriter.insert(quantize, "quantize", quantize.inputs, attrs, f"{name}.slice", joint)
        kept = {"shape": [LEFT] * len(graph.types[stored].shape)}
        view = Node("view", (stored,), quantize.output, kept, quantize.source)
        rewriter.replace(quantize, view)
