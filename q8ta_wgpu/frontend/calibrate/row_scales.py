"""Rows that linears read in int8, each with a scale that the device computes. In torch's programs this is an int16
value followed by `torch.ops.q8ta_wgpu.round_rows`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from q8ta_wgpu.frontend.nodes import OWN, QDQ, kind, named_arguments, why_in_float
from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.int8 import Moves, WeightedSum


@torch.library.custom_op(f"{OWN}::round_rows", mutates_args=())
def round_rows(x: Tensor, unit: float) -> Tensor:
    """x (..., k), multiples of `unit` in float32, each row rounded to at most 127 steps of its own either way."""
    return torch.from_numpy(arithmetic.round_rows(x.detach().cpu().numpy(), unit)).to(x.device)


@round_rows.register_fake
def _shape(x: Tensor, unit: float) -> Tensor:
    return torch.empty_like(x)


def operands(node: Node) -> tuple[Node, Node] | None:
    """The two operands of a linear or product; None for other calls. Either may be the weight."""
    int8 = kind(node)
    if not isinstance(int8, WeightedSum) or not int8.reads_rows or why_in_float(node):
        return None
    arguments = named_arguments(node)
    x = arguments.get("input", arguments.get("mat1", arguments.get("self")))
    weight = arguments.get("weight", arguments.get("mat2", arguments.get("other")))
    if not isinstance(x, Node) or not isinstance(weight, Node) or node.meta["val"].dim() < 2:
        return None
    return x, weight


def insert_rows(module: GraphModule) -> None:
    """Inserts round_rows in a converted module before linears with int8 weights that read int16."""
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
    """The scale of an int16 value, moved or not."""
    while isinstance(kind(node), Moves) and len(node.all_input_nodes) == 1:
        (node,) = node.all_input_nodes
    if str(node.target) != f"{QDQ}.dequantize_per_tensor.default":
        return None
    arguments = named_arguments(node)
    return float(arguments["scale"]) if arguments["dtype"] == torch.int16 else None
