"""Softmax of rows that are masked as a whole. torch's attention gives zeros for them, and so do the integers; torch's
softmax gives NaN where all scores are -inf, of which no range can be found."""

from __future__ import annotations

import math

import torch
from torch.fx import GraphModule, Node

from q8ta_wgpu.frontend.nodes import constant, is_constant, kind
from q8ta_wgpu.ir.int8 import Product, Recurrent, Rowwise, WeightedSum

_aten = torch.ops.aten
_SOFTMAX = (_aten.softmax.int, _aten._softmax.default)
_MIXING = (WeightedSum, Product, Recurrent, Rowwise)
"""Operators that mix elements: no -inf of a mask is behind them. Their results are finite, or NaN."""


def give_zeros(model: GraphModule) -> None:
    """Lets each softmax behind an infinity give zeros where a row is -inf as a whole."""
    infinite = set[Node]()
    for node in model.graph.nodes:
        if infinite.isdisjoint(node.all_input_nodes):
            if _is_infinite(model, node):
                infinite.add(node)
        elif node.target in _SOFTMAX:
            node.target, node.args = _aten._safe_softmax.default, node.args[:2]
        elif not isinstance(kind(node), _MIXING):
            infinite.add(node)


def _is_infinite(model: GraphModule, node: Node) -> bool:
    """Whether a node holds -inf, or has it as an argument, or gives it for zeros."""
    if node.target is _aten.log.default:
        return True
    if is_constant(node):
        values = constant(model, node)
        return values.is_floating_point() and bool(values.isneginf().any())
    return any(isinstance(arg, float) and arg == -math.inf for arg in (*node.args, *node.kwargs.values()))
