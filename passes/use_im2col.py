"""im2col: a convolution as two dispatches, one that copies the windows of its input and a 1x1 convolution of them.

The bytes are those of the convolution. ExecuTorch's Vulkan backend works this way (pull request #17568). By default the
convolution here gathers windows while it loads, which is faster on GPUs that gather fast; tuning measures both
(q8ta_wgpu/tuning/tuner.py). Convolutions of int16 stay one dispatch.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from q8ta_wgpu.ir.graph import Array, Call, Graph
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels.epilogue import epilogue
from q8ta_wgpu.passes.rewriter import Rewriter

CONVOLUTION, WINDOWS = "q8ta_conv2d", "q8ta_im2col"

FEW_CHANNELS, FEW_PIXELS = 32, 4096
"""ExecuTorch's rule selects convolutions of at least so many channels, or of at most so many pixels of the result."""


def use_im2col(graph: Graph, target: Target) -> None:
    """Rewrites the convolutions that ExecuTorch's rule selects, where the target asks for it."""
    _rewrite(graph, by_rule(graph, target))


def by_rule(graph: Graph, target: Target) -> list[str]:
    """Names of results of the convolutions to rewrite where nothing was measured."""
    if not target.copies_windows:
        return []
    nodes = {node.output: node for node in graph.nodes}
    return [name for name in rewritable(graph) if _upstream(graph.call(nodes[name]))]


def rewritable(graph: Graph) -> list[str]:
    """Names of results of the convolutions that can be rewritten: with a kernel larger than 1x1, one group, and a
    multiple of 4 input channels."""
    found = [node for node in graph.nodes if node.op == CONVOLUTION and node.attrs["groups"] == 1]
    shapes = {node.output: graph.types[node.inputs[1]].shape for node in found}
    return [name for name, (_, depth, *kernel) in shapes.items() if depth % 4 == 0 and np.prod(kernel) > 1]


def with_im2col(graph: Graph, names: Collection[str]) -> Graph:
    """A copy of a graph in which the `rewritable` convolutions with these results are rewritten."""
    graph = graph.copy()
    _rewrite(graph, names)
    graph.prune()
    return graph


def _upstream(call: Call) -> bool:
    _, _, rows, columns = epilogue.extents(call)
    return call.inputs[0].shape[1] >= FEW_CHANNELS or rows * columns <= FEW_PIXELS


def _rewrite(graph: Graph, names: Collection[str]) -> None:
    rewriter = Rewriter(graph)
    for node in rewriter.nodes() if names else ():
        if node.output in names:
            x, weight, *rest = node.inputs
            attrs = {name: node.attrs[name] for name in ("stride", "padding", "dilation")}
            attrs["kernel"] = graph.types[weight].shape[2:]
            windows = rewriter.insert(node, WINDOWS, (x,), attrs, f"{node.output}.windows", graph.types[x].q)
            taps = graph.add_constant(f"{weight}.taps", _by_taps(graph.constants[weight]))
            plain = {"stride": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1)}
            rewriter.replace(node, replace(node, inputs=(windows, taps, *rest), attrs={**node.attrs, **plain}))
    rewriter.commit()


def _by_taps(weight: Array) -> Array:
    """(outputs, channels, height, width) -> (outputs, taps x channels, 1, 1)."""
    return weight.transpose(0, 2, 3, 1).reshape(len(weight), -1, 1, 1)
