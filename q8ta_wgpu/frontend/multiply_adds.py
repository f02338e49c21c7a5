"""Multiply-adds of calls on torch's graph. Those of a call on our graph are counted by its operator, `Op.macs`.

Shapes say how many a call of an operator has that the table knows. A program that PyTorch runs in part has others too,
which torch's own counter counts: it runs them on fake tensors, about a millisecond a call.
"""

from __future__ import annotations

import math
import operator

import torch
from torch import Tensor
from torch.fx import Node
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode

from q8ta_wgpu.frontend.export.recurrent_layers import is_recurrent
from q8ta_wgpu.frontend.nodes import integer, is_qdq, is_transposed, kind, named_arguments
from q8ta_wgpu.ir.int8 import Product, WeightedSum
from q8ta_wgpu.kernels import ATEN


def multiply_adds(call: Node) -> int:
    """Of a convolution, linear, recurrent layer, attention or product, as their shapes say; 0 of other calls."""
    if is_recurrent(call):
        return _rows(call) * sum(size_of(weight) for weight in _matrices(call))
    return multiply_adds_of_input(call)


def multiply_adds_of_input(call: Node) -> int:
    """Those in which the first operand takes part. Only a recurrent layer has others: its hidden states'."""
    if is_recurrent(call):
        return _rows(call) * sum(size_of(weight) for weight in _matrices(call)[::2])
    if not isinstance(kind(call), WeightedSum | Product):
        return 0
    arguments = named_arguments(call)
    if "query" in arguments:
        return 2 * size_of(arguments["query"]) * shape_of(arguments["key"])[-2]
    if isinstance(weight := arguments.get("weight"), Node):
        return size_of(arguments["input"] if is_transposed(call) else call) * math.prod(shape_of(weight)[1:])
    return size_of(call) * shape_of(arguments.get("mat1", arguments["self"]))[-1]


def multiply_adds_of_any(call: Node) -> int:
    """Of any call, also of operators that the table does not have; 0 of quantizes and dequantizes."""
    if str(call.target) in ATEN:
        return multiply_adds(call)
    if is_qdq(call) or call.target is operator.getitem:
        return 0
    args, kwargs = torch.fx.map_arg((call.args, call.kwargs), lambda n: n.meta["val"])
    modes = [value.fake_mode for value in pytree.tree_leaves((args, kwargs)) if hasattr(value, "fake_mode")]
    if not modes:
        return 0
    with torch.no_grad(), modes[0], FlopCounterMode(display=False) as counter:
        call.target(*args, **kwargs)  # type: ignore[operator]
    return integer(counter.get_total_flops()) // 2


def size_of(node: Node) -> int:
    """How many elements a call's result has."""
    return math.prod(shape_of(node))


def shape_of(node: Node) -> tuple[int, ...]:
    """The shape of a call's result, or of what an observer watches; (1,) where that is no tensor or has no shape."""
    while node.op == "call_module":
        (node,) = node.all_input_nodes
    value = node.meta.get("val")
    return tuple(map(integer, value.shape)) if isinstance(value, Tensor) and value.dim() else (1,)


def _rows(layer: Node) -> int:
    """Of the input of a recurrent layer: one for each step of each sequence."""
    source = named_arguments(layer)["input" if "input" in named_arguments(layer) else "data"]
    return size_of(source) // shape_of(source)[-1]


def _matrices(layer: Node) -> list[Node]:
    """The weights of a recurrent call, of its input and of hidden states in turn."""
    return [weight for weight in named_arguments(layer)["params"] if len(shape_of(weight)) == 2]
