"""Fuses what makes a convolution's image into the convolution, which then makes it while it loads: the quantize of a
float image, the gate of squeeze-and-excite, or the 1x1 convolution of an inverted residual."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import INT8X4, Call, Graph, Node
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.kernels.conv2d.conv2d_expanded import POINTWISE, numbers
from q8ta_wgpu.kernels.epilogue.stages import Requantize
from q8ta_wgpu.kernels.lib.thresholds import FEW_MACS, FEW_ROWS
from q8ta_wgpu.kernels.prologue.prologue import VECTOR, Part, Prologue
from q8ta_wgpu.kernels.prologue.stage import Gate
from q8ta_wgpu.passes.fold_moves import CONVOLUTION, OF_PARTS, OWN
from q8ta_wgpu.passes.rewriter import Rewriter

OF_IMAGE, EXPANDED = "q8ta_conv2d_image", "q8ta_conv2d_expanded"

Merge = Callable[[Graph, Node, Node, Target], Node | None]
"""(graph, node that makes an image, convolution that reads it, target) -> both as one; None where that does not pay."""


def _fold(graph: Graph, target: Target, merge: Merge) -> None:
    """Merges each convolution with the node whose only reader it is, where an operator and a kernel take both."""
    rewriter = Rewriter(graph)
    for node in rewriter.nodes():
        producer = rewriter.only_producer(node.inputs[0]) if node.op == CONVOLUTION else None
        # What adds the image to its result needs it stored.
        if producer is None or node.inputs.count(producer.output) > 1:
            continue
        merged = merge(graph, producer, node, target)
        if merged is not None and _runs(graph, merged, target):
            rewriter.replace(node, merged)
    rewriter.commit()


def _runs(graph: Graph, node: Node, target: Target) -> bool:
    """Whether an operator takes a call of a node, and one of its kernels runs it."""
    try:
        OPS[node.op].check(tuple(graph.types[name] for name in node.inputs), node.attrs)
    except GraphError:  # another window, number of channels or groups, broadcast, or width
        return False
    return any(kernel.runs(graph.call(node), target) for kernel in OPS[node.op].kernels)


# --- a float image ---

MOST_LOADS = 3 << 22
"""Limit of floats that are quantized while loading: each pixel once for each tap and each tile of channels. Above it a
separate `quantize` is faster. `python -m bench image` on an H200: up to 11 million are faster, 43 million slower."""

TILE = 64
"""Output channels that share one load."""

MOST_TIMES, TILE_CPU = 16, 32
"""How often lavapipe reads a float of several channels in less time than a word of `quantize`, and the channels of the
result that share it there. `python -m bench image`, the time of two dispatches: 0.79 where a float is read 24 times
(ResNet-50), 0.80 where 18 times (VGG), 1.18 where twice (MobileNetV2)."""


def fold_image(graph: Graph, target: Target) -> None:
    """Makes q8ta_conv2d_image of quantize -> q8ta_conv2d, with any epilogue, where it pays."""
    _fold(graph, target, _with_quantize)


def _with_quantize(graph: Graph, quantize: Node, node: Node, target: Target) -> Node | None:
    if quantize.op != "quantize" or not _pays(graph.call(node), target):
        return None
    q = graph.types[quantize.output].q
    assert q is not None
    image = {"x_scale": q.scale, "x_zero": q.zero, "x_lo": quantize.attrs["lo"], "x_hi": quantize.attrs["hi"]}
    return replace(node, op=OF_IMAGE, inputs=(quantize.inputs[0], *node.inputs[1:]), attrs={**node.attrs, **image})


def _pays(call: Call, target: Target) -> bool:
    """Whether q8ta_conv2d_image is faster than quantize and a convolution. On CPUs it is, except on lavapipe where
    floats of several channels are read often: one int8 word holds the channels of a pixel."""
    image, weight = call.inputs[0].shape, call.inputs[1].shape
    loads = call.output.numel // weight[0] * math.prod(weight[1:])
    if target.shuffles and image[1] > 1:
        return loads * -(-weight[0] // TILE_CPU) <= MOST_TIMES * math.prod(image)
    return target.few_cores or loads * -(-weight[0] // TILE) <= MOST_LOADS


# --- a gate ---

MOST_CHANNELS, MOST_ON_UNITS = 96, 48
"""The most channels of the result, since each tile along them computes the stage again, on CPUs and on matrix units. On
lavapipe MobileNetV3 has no more than 96, and takes 0.88 of the time. On an H100 at batch 8 it takes 0.334 ms without,
0.319 with gates before up to 48 channels, and 0.328 up to 96. Other GPUs were not timed."""


def fold_stages(graph: Graph, target: Target) -> None:
    """Makes q8ta_conv2d_parts with a stage of a q8ta_mul -> q8ta_conv2d, where it pays."""
    if target.prologues:
        _fold(graph, target, _with_gate)


def _with_gate(graph: Graph, gate: Node, node: Node, target: Target) -> Node | None:
    if gate.op != "q8ta_mul" or not _fits(graph.call(gate), graph.call(node), target):
        return None
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


def _fits(gate: Call, call: Call, target: Target) -> bool:
    """Whether a convolution may compute its gate: with a window of 1x1 and stride 1."""
    attrs, (n, _, h, w) = call.attrs, call.inputs[0].shape
    window = (call.inputs[1].shape[2:], attrs["stride"], attrs["groups"], any(attrs["padding"]))
    images = gate.output.dtype == INT8X4 and all(len(t.shape) == 4 for t in gate.inputs)
    many = n * h * w > FEW_ROWS and h * w > 1
    most = 0 if target.shares_memory else MOST_CHANNELS
    few = call.inputs[1].shape[0] <= (MOST_ON_UNITS if target.matrix_units else most)
    return images and many and few and window == ((1, 1), (1, 1), 1, False)


# --- a 1x1 convolution ---


def fold_expansions(graph: Graph, target: Target) -> None:
    """Makes q8ta_conv2d_expanded of a 1x1 convolution -> a depthwise one, where it pays."""
    if target.prologues:
        _fold(graph, target, _with_expansion)


def _with_expansion(graph: Graph, inner: Node, node: Node, target: Target) -> Node | None:
    if inner.op != CONVOLUTION or not _expands(graph.call(inner)):
        return None
    x, weight, *rounding = inner.inputs[:OWN]
    stored = graph.add_constant(f"{weight}.numbers", numbers(*(graph.constants[name] for name in rounding)))
    rounds, q = inner.attrs["epilogue"].stages[0], graph.types[inner.output].q
    assert q is not None
    attrs = {**node.attrs, "x_zero": q.zero, "x_lo": rounds.lo, "x_hi": rounds.hi}
    return replace(node, op=EXPANDED, inputs=(x, *node.inputs[1:OWN], weight, stored, *node.inputs[OWN:]), attrs=attrs)


def _expands(inner: Call) -> bool:
    """Whether a convolution is a 1x1 one that only rounds, whose result may be made where it is read."""
    stages, window = inner.attrs["epilogue"].stages, {name: inner.attrs[name] for name in POINTWISE}
    plain = len(stages) == 1 and isinstance(stages[0], Requantize) and window == POINTWISE
    return plain and inner.inputs[1].shape[2:] == (1, 1) and OPS[CONVOLUTION].macs(inner) <= FEW_MACS
