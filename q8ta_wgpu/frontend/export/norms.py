"""Batch norms of a float program: folded where that is right, before PT2E looks at it, kept as they are elsewhere."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from q8ta_wgpu.frontend.export.editor import give, tensors_of
from q8ta_wgpu.frontend.export.scaled import by_output
from q8ta_wgpu.frontend.nodes import folds_into, is_constant, named_arguments, normalizes


def fold_norms(model: GraphModule) -> None:
    """Multiplies each batch norm that alone reads a convolution or linear of its channels into weight and bias.

    Every call gets a weight and bias of its own, so that a module applied twice may have a batch norm behind each.
    """
    for norm in list(model.graph.nodes):
        if normalizes(norm) and folds_into(norm, norm.args[0]) and is_known(norm) and is_known(norm.args[0]):
            _fold(model, norm, norm.args[0])


def is_known(node: Node) -> bool:
    """Whether what a convolution, linear or batch norm needs is there and all of it constant."""
    arguments = named_arguments(node)
    required = ("running_mean", "running_var") if normalizes(node) else ("weight",)
    given = [arguments.get(name) for name in ("weight", "bias", "running_mean", "running_var")]
    constant = all(value is None or (isinstance(value, Node) and is_constant(value)) for value in given)
    return constant and not arguments.get("training") and all(arguments.get(name) for name in required)


def _fold(model: GraphModule, norm: Node, weighted: Node) -> None:
    own, affine = tensors_of(model, weighted), tensors_of(model, norm)
    factor = affine.get("weight", 1.0) / torch.sqrt(affine["running_var"] + named_arguments(norm)["eps"])
    bias = affine.get("bias", 0.0) + (own.get("bias", 0.0) - affine["running_mean"]) * factor
    give(model, weighted, {"weight": by_output(weighted, own["weight"], factor), "bias": bias})
    results = [] if isinstance(norm.meta["val"], Tensor) else list(norm.users)
    for node in (*results, norm):  # of a batch norm with several results only the first has readers
        node.replace_all_uses_with(weighted)
        model.graph.erase_node(node)
