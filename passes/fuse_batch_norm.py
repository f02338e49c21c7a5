"""Folds a batch norm that directly follows a convolution or linear into its float weight and bias."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from q8ta_wgpu.ir.graph import Graph
from q8ta_wgpu.passes.rewriter import Rewriter


def fuse_batch_norm(graph: Graph) -> None:
    """conv2d -> batch_norm becomes conv2d with w * s and (b - mean) * s + beta, s = gamma / sqrt(var + eps); so do
    conv_transpose2d and linear.

    Only where the weight is a float constant and nothing else reads the convolution. PT2E folds batch norms itself;
    this catches what it leaves. (Quantized weights are left alone: their scales were chosen without the batch norm.)
    """
    rewriter = Rewriter(graph)
    for node in rewriter.nodes():
        conv = rewriter.only_producer(node.inputs[0]) if node.op == "batch_norm" else None
        if conv is None or conv.op not in ("conv2d", "conv_transpose2d", "linear"):
            continue
        if conv.op == "linear" and len(graph.types[conv.output].shape) != 2:
            continue  # its outputs are the last dimension, a batch norm's channels dimension 1
        if any(name not in graph.constants for name in (*conv.inputs[1:], *node.inputs[1:])):
            continue
        weight, bias = (graph.constants[name].astype(np.float64) for name in conv.inputs[1:])
        gamma, beta, mean, var = (graph.constants[name].astype(np.float64) for name in node.inputs[1:])
        factor = gamma / np.sqrt(var + node.attrs["eps"])
        shape = (-1,) + (1,) * (weight.ndim - 1)
        folded_weight = graph.add_constant(f"{conv.inputs[1]}.bn", (weight * factor.reshape(shape)).astype(np.float32))
        folded_bias = graph.add_constant(f"{conv.inputs[2]}.bn", ((bias - mean) * factor + beta).astype(np.float32))
        rewriter.replace(node, replace(conv, inputs=(conv.inputs[0], folded_weight, folded_bias)))
    rewriter.commit()
