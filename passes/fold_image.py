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


def pays(call: Call, target: Target) -> bool:
    """Whether q8ta_conv2d_image is faster than quantize and q8ta_conv2d. On CPUs it always was when measured."""
    weight = call.inputs[1].shape
    pixels = call.output.numel // weight[0]
    return target.few_cores or pixels * math.prod(weight[1:]) * -(-weight[0] // TILE) <= MOST_LOADS


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
