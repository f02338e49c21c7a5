"""Fuses what makes the image of a 1x1 convolution into it, where the convolution alone reads that: it is computed while
the convolution loads. So is the product with a number for each channel of an image, as squeeze-and-excite has it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import INT8X4, Call, Graph, Node
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.kernels.lib.thresholds import FEW_ROWS
from q8ta_wgpu.kernels.prologue.prologue import VECTOR, Part, Prologue
from q8ta_wgpu.kernels.prologue.stage import Gate
from q8ta_wgpu.passes.fold_moves import CONVOLUTION, OF_PARTS, OWN
from q8ta_wgpu.passes.rewriter import Rewriter

MOST_CHANNELS, MOST_ON_UNITS = 96, 48
"""The most channels of the result, since each tile along them computes the stage again, on CPUs and on matrix units. On
lavapipe MobileNetV3 has no more than 96, and takes 0.88 of the time. On an H100 at batch 8 it takes 0.334 ms without,
0.319 with gates before up to 48 channels, and 0.328 up to 96. Other GPUs were not timed."""


def fold_stages(graph: Graph, target: Target) -> None:
    """Replaces a convolution and what makes its image by q8ta_conv2d_parts with a stage, where a kernel takes it."""
    rewriter = Rewriter(graph)
    for node in rewriter.nodes() if target.prologues else ():
        gate = rewriter.only_producer(node.inputs[0]) if node.op == CONVOLUTION else None
        if gate is None or gate.op != "q8ta_mul" or not _fits(graph.call(gate), graph.call(node), target):
            continue
        merged = _merged(graph, gate, node)
        try:
            OPS[OF_PARTS].check(tuple(graph.types[name] for name in merged.inputs), merged.attrs)
        except GraphError:  # another broadcast than that of a gate, or an image of int16
            continue
        if any(kernel.runs(graph.call(merged), target) for kernel in OPS[OF_PARTS].kernels):
            rewriter.replace(node, merged)
    rewriter.commit()


def _fits(gate: Call, call: Call, target: Target) -> bool:
    """Whether a convolution may compute its gate: with a window of 1x1 and stride 1."""
    attrs, (n, _, h, w) = call.attrs, call.inputs[0].shape
    window = (call.inputs[1].shape[2:], attrs["stride"], attrs["groups"], any(attrs["padding"]))
    images = gate.output.dtype == INT8X4 and all(len(t.shape) == 4 for t in gate.inputs)
    many = n * h * w > FEW_ROWS and h * w > 1
    most = 0 if target.shares_memory else MOST_CHANNELS
    few = call.inputs[1].shape[0] <= (MOST_ON_UNITS if target.matrix_units else most)
    return images and many and few and window == ((1, 1), (1, 1), 1, False)


def _merged(graph: Graph, gate: Node, node: Node) -> Node:
    """The convolution with its gate."""
    factor, x = sorted(gate.inputs, key=lambda name: graph.types[name].numel)
    q, weight = graph.types[gate.output].q, graph.constants[node.inputs[1]]
    assert q is not None
    vectors = -(-weight.shape[1] // VECTOR)
    stage = Gate(q.zero, gate.attrs["lo"], gate.attrs["hi"], gate.attrs["multiplier"])
    lanes = ((0, 0), (0, VECTOR * vectors - weight.shape[1]), (0, 0), (0, 0))
    stored = graph.add_constant(f"{node.inputs[1]}.parts", np.pad(weight, lanes))
    inputs = (x, stored, *node.inputs[2:OWN], factor, *node.inputs[OWN:])
    attrs = {**node.attrs, "prologue": Prologue((Part(0, 0, vectors, 0),), stage)}
    return replace(node, op=OF_PARTS, inputs=inputs, attrs=attrs)
