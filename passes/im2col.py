"""Rewrites convolutions to im2col and a 1x1 convolution. Not among PASSES: the implicit matrix product needs no copy.

`python -m bench im2col` measures where the copy pays.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from q8ta_wgpu.ir.graph import INT8X4, Array, Graph, Node, TensorType
from q8ta_wgpu.kernels import OPS


def use_im2col(graph: Graph, where: Callable[[Node], bool] = lambda node: True) -> Graph:
    """A copy of `graph` in which each q8ta_conv2d of one group and more than one tap that `where` picks is two nodes.
    What quantizes a float image itself stays.

    The results are the same bytes: the weights are reordered to (tap, channel), and padded channels meet weights of 0.
    """
    graph = graph.copy()
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.op == "q8ta_conv2d" and _has_window(graph, node) and where(node):
            nodes += _rewritten(graph, node)
        else:
            nodes.append(node)
    graph.nodes = nodes
    graph.prune()
    return graph


def _has_window(graph: Graph, node: Node) -> bool:
    _, _, height, width = graph.types[node.inputs[1]].shape
    int8 = graph.types[node.inputs[0]].dtype == INT8X4
    return int8 and node.attrs["groups"] == 1 and height * width > 1


def _rewritten(graph: Graph, node: Node) -> tuple[Node, Node]:
    x, weight, *rest = node.inputs
    attrs = {name: node.attrs[name] for name in ("stride", "padding", "dilation")}
    attrs["kernel"] = graph.call(node).inputs[1].shape[2:]
    windows = graph.fresh(f"{node.output}.im2col")
    shape, dtype = OPS["im2col"].check((graph.types[x],), attrs)
    graph.types[windows] = TensorType(shape, dtype, graph.types[x].q)
    taps = graph.add_constant(f"{weight}.im2col", _by_taps(graph.constants[weight]))
    pointwise = {**node.attrs, "stride": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1)}
    return (
        Node("im2col", (x,), windows, attrs, node.source),
        Node(node.op, (windows, taps, *rest), node.output, pointwise, node.source),
    )


def _by_taps(weight: Array) -> Array:
    """(outputs, inputs, height, width) -> (outputs, taps x padded inputs, 1, 1)."""
    outputs, depth, height, width = weight.shape
    taps = weight.transpose(0, 2, 3, 1).reshape(outputs, height * width, depth)
    return np.pad(taps, ((0, 0), (0, 0), (0, -depth % 4))).reshape(outputs, -1, 1, 1)
