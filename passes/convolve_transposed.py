"""A float32 transposed convolution as a convolution and a pixel shuffle, on software adapters.

With stride s an output row s·r + p reads only the rows p, p + s, p + 2s .. of the kernel. So the s·s phases of the
result are output channels of one convolution of the input with kernels of ceil(size / s) rows and columns, and
pixel_shuffle puts them in their places. (Shi et al., "Is the deconvolution layer the same as a convolutional layer?",
2016.) The int8 form gathers phases while it loads. No GPU was timed, so these keep the kernel that reads taps one by
one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from q8ta_wgpu.ir.graph import Array, Call, Graph, Node
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.passes.rewriter import Rewriter

FEW_OUTPUTS = 16
"""Fewer output channels do not fill a tile of the product. On lavapipe 64 channels of 32x32 to 32 by a 4x4 kernel with
stride 2 take 38 ms instead of 140, 128 of 16x16 to 64 by 2x2 10 instead of 36, but 32 of 32x32 to 3 by 3x3 9.6 instead
of 5.3."""


def convolve_transposed(graph: Graph, target: Target) -> None:
    """Rewrites conv_transpose2d with one group, equal strides, no dilation, a kernel not smaller than the stride, and
    FEW_OUTPUTS channels or more."""
    if target.shares_memory:
        return
    rewriter = Rewriter(graph)
    for node in rewriter.nodes():
        if node.op == "conv_transpose2d" and _has_phases(graph.call(node)):
            _rewrite(rewriter, node)
    rewriter.commit()


def _has_phases(call: Call) -> bool:
    attrs, (outputs, _, height, width) = call.attrs, call.inputs[1].shape
    (sy, sx), dilation = attrs["stride"], tuple(attrs["dilation"])
    plain = attrs["groups"] == 1 and dilation == (1, 1) and sy == sx <= min(height, width)
    return bool(plain and outputs >= FEW_OUTPUTS)


def _rewrite(rewriter: Rewriter, node: Node) -> None:
    graph, (x, weight, bias) = rewriter.graph, node.inputs
    factor, (top, left) = node.attrs["stride"][0], node.attrs["padding"]
    rows, columns = graph.types[x].shape[2:]
    height, width = graph.types[node.output].shape[2:]
    phases = _phases(graph.constants[weight], factor)
    ky, kx = phases.shape[2:]
    # Rows of phases behind the last tap exist where the result's padding asks for them.
    below, right = (max(-(-end // factor) - count, 0) for end, count in ((top + height, rows), (left + width, columns)))
    kernels = graph.add_constant(f"{weight}.phases", phases)
    offsets = graph.add_constant(f"{bias}.phases", np.repeat(graph.constants[bias], factor * factor))
    attrs = {"stride": (1, 1), "padding": (ky - 1, kx - 1, below, right), "dilation": (1, 1), "groups": 1}
    found = rewriter.insert(node, "conv2d", (x, kernels, offsets), attrs, f"{node.output}.phases")
    if factor > 1:
        found = rewriter.insert(node, "pixel_shuffle", (found,), {"upscale_factor": factor}, f"{node.output}.shuffled")
    found = rewriter.insert(node, "slice", (found,), _cut(2, top, height), f"{node.output}.rows")
    rewriter.replace(node, replace(node, op="slice", inputs=(found,), attrs=_cut(3, left, width)))


def _cut(dim: int, first: int, count: int) -> dict[str, int]:
    return {"dim": dim, "start": first, "end": first + count, "step": 1, "extent": 0}


def _phases(weight: Array, factor: int) -> Array:
    """(outputs, inputs, height, width) → (outputs · factor², inputs, ceil(height / factor), ceil(width / factor)), in
    pixel_shuffle's order of channels, with the taps of a convolution: the last one first."""
    outputs, inputs, height, width = weight.shape
    ky, kx = -(-height // factor), -(-width // factor)
    full = np.zeros((outputs, inputs, ky * factor, kx * factor), weight.dtype)
    full[:, :, :height, :width] = weight
    split = full.reshape(outputs, inputs, ky, factor, kx, factor)[:, :, ::-1, :, ::-1]
    return split.transpose(0, 3, 5, 1, 2, 4).reshape(outputs * factor**2, inputs, ky, kx)
