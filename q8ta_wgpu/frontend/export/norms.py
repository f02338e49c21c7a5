"""Batch norms of a float program: folded where that is right, before PT2E looks at it, kept as they are elsewhere."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from q8ta_wgpu.frontend.nodes import folds_into, is_constant, is_transposed, named_arguments, normalizes


def fold_norms(model: GraphModule) -> None:
    """Multiplies each batch norm that alone reads a convolution or linear of its channels into weight and bias.

    Every call gets a weight and bias of its own, so that a module applied twice may have a batch norm behind each.
    """
    for norm in list(model.graph.nodes):
        if norm.op != "call_function" or "running_mean" not in _parameters(norm):
            continue
        weighted = norm.args[0]
        if folds_into(norm, weighted) and is_known(norm) and is_known(weighted):
            _fold(model, norm, weighted)


def _parameters(node: Node) -> dict[str, Any]:
    """The parameters and statistics that a convolution, linear or batch norm is called with, by name."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return {}
    arguments = named_arguments(node)
    return {
        name: arguments.get(name) for name in ("weight", "bias", "running_mean", "running_var") if name in arguments
    }


def is_known(node: Node) -> bool:
    """Whether what is needed is there and all of it constant."""
    given = _parameters(node)
    required = ("running_mean", "running_var") if normalizes(node) else ("weight",)
    constant = all(value is None or (isinstance(value, Node) and is_constant(value)) for value in given.values())
    return constant and not named_arguments(node).get("training") and all(given.get(name) for name in required)


def _fold(model: GraphModule, norm: Node, weighted: Node) -> None:
    own = {name: tensor_of(model, node) for name, node in _parameters(weighted).items() if node}
    affine = {name: tensor_of(model, node) for name, node in _parameters(norm).items() if node}
    weight, eps = own["weight"], named_arguments(norm)["eps"]
    factor = affine.get("weight", 1.0) / torch.sqrt(affine["running_var"] + eps)
    bias = affine.get("bias", 0.0) + (own.get("bias", 0.0) - affine["running_mean"]) * factor
    trailing = (1,) * (weight.dim() - 2)
    if is_transposed(weighted):  # (inputs, outputs / groups, ...): the inputs of a group meet the group's outputs
        groups = named_arguments(weighted).get("groups", 1)
        by_group = weight.reshape(groups, -1, *weight.shape[1:])
        scaled = (by_group * factor.reshape(groups, 1, -1, *trailing)).reshape(weight.shape)
    else:
        scaled = weight * factor.reshape(-1, 1, *trailing)
    with model.graph.inserting_before(weighted):
        folded = [new_constant(model, weighted, name, value) for name, value in (("weight", scaled), ("bias", bias))]
    weighted.args = (weighted.args[0], *folded, *weighted.args[3:])
    weighted.kwargs = {name: value for name, value in weighted.kwargs.items() if name not in ("weight", "bias")}
    results = [] if isinstance(norm.meta["val"], Tensor) else list(norm.users)
    for node in (*results, norm):  # of a batch norm with several results only the first has readers
        node.replace_all_uses_with(weighted)
        model.graph.erase_node(node)


def tensor_of(model: GraphModule, node: Node, dtype: torch.dtype = torch.float64) -> Tensor:
    """The value of a parameter or buffer."""
    path, _, name = str(node.target).rpartition(".")
    tensor: Tensor = getattr(model.get_submodule(path), name)
    return tensor.detach().to(dtype)


def new_constant(model: GraphModule, node: Node, name: str, value: Tensor) -> Node:
    """A parameter of the model's own that a call reads as `name`."""
    target = f"{node.name}_folded_{name}"
    parameter = torch.nn.Parameter(value.float().contiguous(), requires_grad=False)
    model.register_parameter(target, parameter)
    constant = model.graph.get_attr(target)
    constant.meta["val"] = node.meta["val"].fake_mode.from_tensor(parameter, static_shapes=True)
    return constant
