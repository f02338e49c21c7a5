"""The bounds of integer inputs, which follow from how a network uses them."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

import torch
from torch.fx import Graph, Node

from q8ta_wgpu.frontend.importer.integer_ranges import Ranges, is_integer, name_of
from q8ta_wgpu.frontend.nodes import integer, named_arguments
from q8ta_wgpu.importing.builder import RefusedError

_LIMITS = tuple((1 << bits) - 1 for bits in (31, 30, 28, 24, 20, 16, 12))
"""Bounds for an input, tried in this order: the largest with which the network's own arithmetic fits int32 is chosen.
"""

_PERMUTING = (
    *("view", "reshape", "_unsafe_view", "permute", "transpose", "t", "expand", "unsqueeze", "squeeze", "flatten"),
    *("clone", "alias", "to", "_to_copy", "flip"),
)
"""Operators whose results have all elements of their operand, and no others."""


def bounds_of(graph: Graph, known: Mapping[Node, Any], states: Container[str]) -> dict[Node, tuple[int, int]]:
    """The bounds of each integer input. For an index into tables or caches they are the rows of these. For others they
    are the largest with which the network computes exactly. `states`: inputs and results that are kept between calls.
    """
    inputs = [n for n in graph.find_nodes(op="placeholder") if n not in known and is_number(n)]
    bounds: dict[Node, tuple[int, int]] = {}
    for limit in _LIMITS if inputs else ():
        bounds = {node: _rows_of(node, limit) for node in inputs}
        ranges = Ranges(known, bounds)
        try:
            for node in graph.nodes:
                if name_of(node) and node not in known:
                    ranges.check(node)
                if node.name in states:
                    ranges.check_result(node, True)
            break
        except RefusedError:
            continue
    return bounds


def _rows_of(node: Node, limit: int) -> tuple[int, int]:
    """The lowest and the highest index that is valid in every table that the node, or a moved copy of it, indexes; at
    most `limit` from 0."""
    low, high, copies = -limit, limit, [node]
    for copy in copies:
        ends = torch.iinfo(copy.meta["val"].dtype)
        low, high = max(low, ends.min), min(high, ends.max)
        for user in copy.users:
            least, rows = _indexed_rows(user, copy)
            if rows:
                low, high = max(low, least), min(high, rows - 1)
            elif name_of(user) in _PERMUTING and user.args[0] is copy and is_integer(user.meta.get("val")):
                copies.append(user)
    return low, high


def _indexed_rows(user: Node, node: Node) -> tuple[int, int]:
    """The lowest valid index, and the number of rows, of a call that reads or writes rows at the indices `node`; no
    rows for other calls."""
    name, arguments = name_of(user), named_arguments(user) if name_of(user) else {}
    if name == "embedding" and arguments["indices"] is node:
        return 0, integer(arguments["weight"].meta["val"].shape[0])
    rows_of = ("index_select", "gather", "index_copy")
    if name in rows_of and arguments["index"] is node and (shape := arguments["self"].meta["val"].shape):
        return 0, integer(shape[arguments["dim"]])
    if name in ("index", "index_put") and node in arguments["indices"]:
        rows = integer(arguments["self"].meta["val"].shape[arguments["indices"].index(node)])
        return -rows, rows
    return 0, 0


def is_number(node: Node) -> bool:
    """Whether an input becomes an int32 input of a graph. Inputs of int64, int32 and int16 do. Inputs of int8 and uint8
    do if they are used as numbers, such as tokens, and not as pixels."""
    dtype, whole = getattr(node.meta.get("val"), "dtype", None), (torch.int64, torch.int32, torch.int16)
    users = [user for user in node.users if name_of(user) != "_assert_tensor_metadata"]
    read = all(name_of(user) in ("to", "_to_copy") and user.meta["val"].dtype in whole for user in users)
    return dtype in whole or (dtype in (torch.int8, torch.uint8) and bool(users) and read)
