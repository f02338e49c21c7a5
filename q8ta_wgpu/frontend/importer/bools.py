"""What a call means by its operands: a graph holds bools, integers and places as float32 numbers."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Node

from q8ta_wgpu.frontend.export.recurrent import is_recurrent, shifts_of
from q8ta_wgpu.frontend.importer.builder import RefusedError
from q8ta_wgpu.frontend.importer.integers import is_integer
from q8ta_wgpu.frontend.nodes import is_float, named_arguments

_JOINS = ("aten.cumsum.default", "aten.cumprod.default", "aten.prod.default", "aten.prod.dim_int")
"""Operators that join elements as numbers of the dtype they are told."""


def meant(node: Node, args: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The operator that a call is imported as, and its arguments. Raises RefusedError where floats do not do what
    integers do."""
    name = str(node.target)
    if name == "aten.index_put.default" and any(is_bool(index) for index in named_arguments(node)["indices"]):
        return "aten.where.self", _chosen(node, args)
    if name == "aten.max_pool2d_with_indices.default":
        return name, {**args, "places": any(user.args[1] == 1 for user in node.users)}
    if name == "aten.max_unpool2d.default":
        return name, {**args, "kernel": _window_of(node)}
    if is_recurrent(node):
        return name, {**args, "shifts": shifts_of(node)}
    if name in _JOINS and _counts_floats(node):
        raise RefusedError(f"it joins floats as integers: write x.clamp(-n, n).long().{name.split('.')[1]}(...)")
    if name.startswith(("aten.bitwise_", "aten.__")) and node.meta["val"].dtype == torch.uint8:
        raise RefusedError("it computes with the bits of uint8: of int64, int32 and int16 it is supported, x.int()")
    if name.startswith("aten.add.") and is_bool(node):
        return "aten.bitwise_or.Tensor", args
    return name, args


def _window_of(node: Node) -> tuple[int, int]:
    """The windows of the max_pool2d whose places a call reads, which must not touch each other."""
    places = named_arguments(node)["indices"]
    pool = places.args[0] if isinstance(places, Node) and places.target is operator.getitem else None
    if not isinstance(pool, Node) or str(pool.target) != "aten.max_pool2d_with_indices.default":
        raise RefusedError("its places must be those that a max_pool2d gives")
    given = named_arguments(pool)
    kernel = given["kernel_size"]
    width, made = given["self"].meta["val"].shape[-1], named_arguments(node)["output_size"][-1]
    if made != width:
        raise RefusedError(f"its places count in rows of {width}, its result has rows of {made}: give output_size")
    if list(given.get("stride") or kernel) != list(kernel) or any(given.get("padding") or (0,)):
        raise RefusedError(
            "the windows of its max_pool2d overlap or are padded: their stride must be their size, their padding 0"
        )
    return kernel[0], kernel[-1]


def _counts_floats(node: Node) -> bool:
    """Whether a call makes integers of floats before it computes with them."""
    return is_integer(node.meta["val"]) and is_float(named_arguments(node)["self"])


def _chosen(node: Node, args: Mapping[str, Any]) -> dict[str, Any]:
    """The choice that writing a number where bools of the tensor's own shape hold is."""
    given = named_arguments(node)
    whole = len(given["indices"]) == 1 and given["indices"][0].meta["val"].shape == given["self"].meta["val"].shape
    if not whole or given["values"].meta["val"].numel() != 1 or given.get("accumulate"):
        raise RefusedError("it writes where bools hold: one number, by bools of the tensor's own shape, is supported")
    return {"condition": args["indices"][0], "self": args["values"], "other": args["self"]}


def is_bool(node: object) -> bool:
    """Whether a node's value is a tensor of bools."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return isinstance(value, torch.Tensor) and value.dtype == torch.bool
