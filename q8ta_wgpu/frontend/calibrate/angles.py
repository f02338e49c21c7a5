"""Angles of many turns: sin and cos of an input times constants, as timesteps and positions are embedded."""

from __future__ import annotations

import math
from typing import Any

from torch.fx import GraphModule, Node

from q8ta_wgpu.frontend.nodes import kind
from q8ta_wgpu.ir.int8 import Arithmetic, Moves

_FUNCTIONS = ("aten.sin.default", "aten.cos.default")

_LARGEST = 8 * math.pi
"""The range of an angle of which int8 keeps enough: its steps are a tenth of a radian."""


def free_angles(observed: GraphModule) -> None:
    """Takes observers out of a calibrated model before each sin and cos whose angle is made of inputs and constants
    alone and ran through more than four turns: that angle stays in float32."""
    for node in list(observed.graph.nodes):
        if str(node.target) in _FUNCTIONS and _range(observed, node.args[0]) > _LARGEST:
            made = _ancestors(node)
            if all(map(_is_exact, made - {node})):
                for reader in made:
                    _free(observed, reader)


def _range(observed: GraphModule, angle: Node) -> float:
    """The range that an observer met, 0 where there is none."""
    observer: Any = observed.get_submodule(str(angle.target)) if angle.op == "call_module" else None
    return float(observer.max_val - observer.min_val) if hasattr(observer, "max_val") else 0.0


def _ancestors(node: Node) -> set[Node]:
    """A node and all that it is computed from."""
    found, left = {node}, [node]
    while left:
        new = set(left.pop().all_input_nodes) - found
        found |= new
        left += new
    return found


def _is_exact(node: Node) -> bool:
    """Whether a node is an input, a constant, an observer or arithmetic, none of which rounds to int8 by itself."""
    return node.op in ("placeholder", "get_attr", "call_module") or isinstance(kind(node), Arithmetic | Moves)


def _free(observed: GraphModule, reader: Node) -> None:
    """Lets a call read float32 instead of what observers give."""
    for operand in reader.all_input_nodes if reader.op == "call_function" else ():
        if operand.op == "call_module":
            reader.replace_input_with(operand, operand.all_input_nodes[0])
            if not operand.users:
                observed.graph.erase_node(operand)
