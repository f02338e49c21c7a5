"""The operator that a call is imported as, and its arguments as importer functions take them. In a graph, bools and
indices are float32 numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Node

from q8ta_wgpu.frontend.export.recurrent_layers import is_recurrent
from q8ta_wgpu.frontend.importer.integer_ranges import is_integer
from q8ta_wgpu.frontend.nodes import is_float, named_arguments
from q8ta_wgpu.frontend.notes import SHIFTS, noted
from q8ta_wgpu.importing.builder import RefusedError


def arguments_of(node: Node, values: Mapping[str, Any]) -> dict[str, Any]:
    """A call's arguments by their names in the operator's schema, with defaults. Nodes are replaced by the names of
    their values."""

    def value(argument: Any) -> Any:
        if isinstance(argument, Node):
            return values[argument.name]
        if isinstance(argument, (list, tuple)):
            return list(map(value, argument))
        return argument

    if not isinstance(node.target, torch._ops.OpOverload):
        raise RefusedError("this operator is not supported")
    arguments: dict[str, Any] = {}
    for position, parameter in enumerate(node.target._schema.arguments):
        if position < len(node.args) and not parameter.kwarg_only:
            arguments[parameter.name] = value(node.args[position])
        elif parameter.name in node.kwargs:
            arguments[parameter.name] = value(node.kwargs[parameter.name])
        else:
            arguments[parameter.name] = parameter.default_value
    return arguments


_REDUCTIONS = ("aten.cumsum.default", "aten.cumprod.default", "aten.prod.default", "aten.prod.dim_int")
"""Operators that convert their operand to their dtype before they combine its elements."""


def imported_as(node: Node, args: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name of the operator that a call is imported as, and its arguments. Raises RefusedError where the float
    operator's result would differ from that of torch's integer operator."""
    name = str(node.target)
    if name == "aten.index_put.default" and any(is_bool(index) for index in named_arguments(node)["indices"]):
        return "aten.where.self", _where_arguments(node, args)
    if is_recurrent(node):
        return name, {**args, "shifts": tuple(noted(node, SHIFTS, (0, 0)))}
    if name in _REDUCTIONS and _counts_floats(node):
        raise RefusedError(f"it joins floats as integers: write x.clamp(-n, n).long().{name.split('.')[1]}(...)")
    if name.startswith(("aten.bitwise_", "aten.__")) and node.meta["val"].dtype == torch.uint8:
        raise RefusedError("it computes with the bits of uint8: of int64, int32 and int16 it is supported, x.int()")
    if name.startswith("aten.add.") and is_bool(node):
        return "aten.bitwise_or.Tensor", args
    return name, args


def _counts_floats(node: Node) -> bool:
    """Whether a call converts floats to integers before it computes with them."""
    return is_integer(node.meta["val"]) and is_float(named_arguments(node)["self"])


def _where_arguments(node: Node, args: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `where(mask, n, x)`, which is equal to `x[mask] = n`. Raises RefusedError unless the mask has
    x's shape and n is one number."""
    arguments = named_arguments(node)
    one_mask = (
        len(arguments["indices"]) == 1
        and arguments["indices"][0].meta["val"].shape == arguments["self"].meta["val"].shape
    )
    if not one_mask or arguments["values"].meta["val"].numel() != 1 or arguments.get("accumulate"):
        raise RefusedError("it writes where bools hold: one number, by bools of the tensor's own shape, is supported")
    return {"condition": args["indices"][0], "self": args["values"], "other": args["self"]}


def is_bool(node: object) -> bool:
    """Whether a node's value is a tensor of bools."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return isinstance(value, torch.Tensor) and value.dtype == torch.bool
