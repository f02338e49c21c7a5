"""Folds the quantize of a float image into the convolution that reads it: it is quantized while it is loaded."""

from __future__ import annotations

from dataclasses import replace

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir import Graph, Node
from q8ta_wgpu.kernels import OPS

CONVOLUTION, OF_IMAGE = "q8ta_conv2d", "q8ta_conv2d_image"


def fold_image(graph: Graph) -> None:
    """One sweep: quantize -> q8ta_conv2d becomes q8ta_conv2d_image, whatever the convolution's epilogue, where the
    convolution is all that reads the int8 image and the image has as few channels as q8ta_conv2d_image takes."""
    users, producers = graph.users(), graph.producers()
    folded: set[str] = set()
    for i, node in enumerate(graph.nodes):
        quantize = producers.get(node.inputs[0]) if node.op.startswith(CONVOLUTION) else None
        if quantize is None or quantize.op != "quantize":
            continue
        alone = len(users[quantize.output]) == 1 and node.inputs.count(quantize.output) == 1
        if not alone or quantize.output in graph.outputs:
            continue
        merged = _merged(graph, quantize, node)
        if merged is not None:
            graph.nodes[i] = merged
            folded.add(quantize.output)
    graph.nodes = [node for node in graph.nodes if node.output not in folded]


def _merged(graph: Graph, quantize: Node, node: Node) -> Node | None:
    name, q = OF_IMAGE + node.op.removeprefix(CONVOLUTION), graph.types[quantize.output].q
    if name not in OPS or q is None:
        return None
    image = {"x_scale": q.scale, "x_zero": q.zero, "x_lo": quantize.attrs["lo"], "x_hi": quantize.attrs["hi"]}
    inputs = (quantize.inputs[0], *node.inputs[1:])
    merged = replace(node, op=name, inputs=inputs, attrs={**node.attrs, **image})
    try:
        OPS[name].check(tuple(graph.types[i] for i in inputs), merged.attrs)
    except GraphError:  # more channels or groups than an image has
        return None
    return merged
