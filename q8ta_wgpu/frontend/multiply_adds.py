"""Multiply-adds of calls in torch's graph. For a node of a graph of q8ta_wgpu, `Op.macs` has them.

Those of operators in the table follow from shapes. A program that partly runs in PyTorch has other operators, too, for
which torch's own counter runs the call on fake tensors, about a millisecond each.
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
from q8ta_wgpu.importing.import_table import ATEN
from q8ta_wgpu.ir.int8 import Product, WeightedSum


def multiply_adds(call: Node) -> int:
    """The multiply-adds of a convolution, linear, recurrent layer, attention or product; 0 for other calls."""
    if is_recurrent(call):
        return _rows(call) * sum(
            _size(weight) for weight in named_arguments(call)["params"] if len(_shape(weight)) == 2
        )
    if not isinstance(kind(call), WeightedSum | Product):
        return 0
    arguments = named_arguments(call)
    if "query" in arguments:
        return 2 * _size(arguments["query"]) * _shape(arguments["key"])[-2]
    if isinstance(weight := arguments.get("weight"), Node):
        return _size(arguments["input"] if is_transposed(call) else call) * math.prod(_shape(weight)[1:])
    return _size(call) * _shape(arguments.get("mat1", arguments["self"]))[-1]


def multiply_adds_of_any(call: Node) -> int:
    """The multiply-adds of any call, also of operators that are not in the table; 0 for quantizes and dequantizes."""
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


def _size(node: Node) -> int:
    """The number of elements in a call's result."""
    return math.prod(_shape(node))


def _shape(node: Node) -> tuple[int, ...]:
    """The shape of a call's result; (1,) if it has none."""
    value = node.meta.get("val")
    return tuple(map(integer, value.shape)) if isinstance(value, Tensor) and value.dim() else (1,)


def _rows(layer: Node) -> int:
    """The rows in the input of a recurrent layer: one for each step of each sequence."""
    source = named_arguments(layer)["input" if "input" in named_arguments(layer) else "data"]
    return _size(source) // _shape(source)[-1]
