"""Products with a constant matrix become linears: one operator has one spelling, and a place for a bias."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from q8ta_wgpu.frontend.export.editor import call, new_constant
from q8ta_wgpu.frontend.nodes import constant, is_constant, named_arguments, origins
from q8ta_wgpu.frontend.notes import MADE_OF, note

_aten = torch.ops.aten
_PRODUCTS = (_aten.mm.default, _aten.matmul.default, _aten.addmm.default)


def name_linears(module: GraphModule) -> None:
    """Replaces mm, matmul and addmm of activations with a constant matrix by linear."""
    for node in list(module.graph.nodes):
        if node.target not in _PRODUCTS:
            continue
        arguments: dict[str, Any] = named_arguments(node)
        x: Any = arguments.get("mat1", arguments.get("self"))
        matrix: Any = arguments.get("mat2", arguments.get("other"))
        bias = arguments["self"] if "mat1" in arguments else None
        if _is_matrix(matrix) and _has_rows(x) and _is_bias(bias, matrix) and not {"beta", "alpha"} & arguments.keys():
            turned = constant(module, matrix).detach().T.contiguous()
            weight = new_constant(module, node, f"{node.name}_weight", torch.nn.Parameter(turned, False), like=matrix)
            note(weight, MADE_OF, origins(matrix))
            made = call(node, _aten.linear.default, x, weight, *([bias] if bias is not None else []))
            node.replace_all_uses_with(made)
            module.graph.erase_node(node)
            if not matrix.users:
                module.graph.erase_node(matrix)


def _is_matrix(node: Node) -> bool:
    return isinstance(node, Node) and is_constant(node) and node.meta["val"].dim() == 2


def _has_rows(node: Node) -> bool:
    return isinstance(node, Node) and not is_constant(node) and node.meta["val"].dim() > 1


def _is_bias(node: Node | None, matrix: Node) -> bool:
    if node is None:
        return True
    return is_constant(node) and node.meta["val"].shape == matrix.meta["val"].shape[1:]
