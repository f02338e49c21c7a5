"""Rows that linears read in int8, each with a scale that the device chooses, in torch's programs: a value in int16, and
`torch.ops.q8ta_wgpu.round_rows` of it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from q8ta_wgpu.frontend.nodes import OWN, QDQ, kind, named_arguments, stays_in_float
from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.int8 import Moves, WeightedSum


@torch.library.custom_op(f"{OWN}::round_rows", mutates_args=())
def round_rows(x: Tensor, unit: float) -> Tensor:
    """x (..., k) float32 in whole numbers of `unit`, each row rounded to 127 steps of its own either way."""
    return torch.from_numpy(arithmetic.round_rows(x.detach().cpu().numpy(), unit)).to(x.device)


@round_rows.register_fake
def _shape(x: Tensor, unit: float) -> Tensor:
    return torch.empty_like(x)


def operands(node: Node) -> tuple[Node, Node] | None:
    """What a linear reads by rows, and its weight; None of other calls. Which of the two is a weight, others know."""
    int8 = kind(node)
    if not isinstance(int8, WeightedSum) or not int8.reads_rows or stays_in_float(node):
        return None
    given = named_arguments(node)
    x = given.get("input", given.get("mat1", given.get("self")))
    weight = given.get("weight", given.get("mat2", given.get("other")))
    if not isinstance(x, Node) or not isinstance(weight, Node) or node.meta["val"].dim() < 2:
        return None
    return x, weight


def insert_rows(module: GraphModule) -> None:
    """Rounds, in a converted module, the rows of int16 that linears with int8 weights read."""
    made: dict[Node, Node] = {}
    for node in list(module.graph.nodes):
        found = operands(node) if node.op == "call_function" else None
        if found is None or not str(found[1].target).startswith(f"{QDQ}.dequantize_per_channel"):
            continue
        x = found[0]
        if (unit := _unit(x)) is None:
            continue
        if x not in made:
            with module.graph.inserting_after(x):
                made[x] = module.graph.call_function(torch.ops.q8ta_wgpu.round_rows.default, (x, unit))
            made[x].meta = {**x.meta, **{key: node.meta[key] for key in ("nn_module_stack",) if key in node.meta}}
        node.replace_input_with(x, made[x])
    module.recompile()


def _unit(node: Node) -> float | None:
    """The scale of the int16 that a value is, moved or not."""
    while isinstance(kind(node), Moves) and len(node.all_input_nodes) == 1:
        (node,) = node.all_input_nodes
    if str(node.target) != f"{QDQ}.dequantize_per_tensor.default":
        return None
    given = named_arguments(node)
    return float(given["scale"]) if given["dtype"] == torch.int16 else None
