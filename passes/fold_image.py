"""Fuses the quantize of a float image into the convolution that reads it, which then quantizes while it loads."""

from __future__ import annotations

import math
from dataclasses import replace

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import Call, Graph, Node
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.passes.rewriter import Rewriter

CONVOLUTION, OF_IMAGE = "q8ta_conv2d", "q8ta_conv2d_image"

MOST_LOADS = 3 << 22
"""Limit of floats that are quantized while loading: each pixel once for each tap and each tile of channels. Above it a
separate `quantize` is faster. `python -m bench image` on an H200: up to 11 million are faster, 43 million slower."""

TILE = 64
"""Output channels that share one load."""


MOST_TIMES, TILE_CPU = 16, 32
"""How often lavapipe reads a float of several channels in less time than a word of `quantize`, and the channels of the
result that share it there. `python -m bench image`, the time of two dispatches: 0.79 where a float is read 24 times
(ResNet-50), 0.80 where 18 times (VGG), 1.18 where twice (MobileNetV2)."""


def pays(call: Call, target: Target) -> bool:
    """Whether q8ta_conv2d_image is faster than quantize and q8ta_conv2d. On CPUs it is, except on lavapipe where
    floats of several channels are read often: one int8 word holds the channels of a pixel."""
    image, weight = call.inputs[0].shape, call.inputs[1].shape
    loads = call.output.numel // weight[0] * math.prod(weight[1:])
    if target.shuffles and image[1] > 1:
        return loads * -(-weight[0] // TILE_CPU) <= MOST_TIMES * math.prod(image)
    return target.few_cores or loads * -(-weight[0] // TILE) <= MOST_LOADS


def fold_image(graph: Graph, target: Target) -> None:
    """Replaces quantize -> q8ta_conv2d by q8ta_conv2d_image, with any epilogue. The convolution must be the only reader
    of the int8 image, q8ta_conv2d_image must support it, and it must pay on the target."""
    rewriter = Rewriter(graph)
    for node in rewriter.nodes():
        quantize = rewriter.only_producer(node.inputs[0]) if node.op == CONVOLUTION else None
        merged = _merged(graph, quantize, node) if quantize is not None and quantize.op == "quantize" else None
        if merged is not None and pays(graph.call(merged), target):
            rewriter.replace(node, merged)
    rewriter.commit()


def _merged(graph: Graph, quantize: Node, node: Node) -> Node | None:
    q = graph.types[quantize.output].q
    assert q is not None
    if node.inputs.count(quantize.output) > 1:  # an addend of the epilogue as well
        return None
    image = {"x_scale": q.scale, "x_zero": q.zero, "x_lo": quantize.attrs["lo"], "x_hi": quantize.attrs["hi"]}
    merged = replace(node, op=OF_IMAGE, inputs=(quantize.inputs[0], *node.inputs[1:]), attrs={**node.attrs, **image})
    try:
        OPS[OF_IMAGE].check(tuple(graph.types[name] for name in merged.inputs), merged.attrs)
    except GraphError:  # more channels or groups than an image has
        return None
    return merged
