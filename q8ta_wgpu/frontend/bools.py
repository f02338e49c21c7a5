"""What a call means by the dtypes of its operands: a graph holds bools and integers as float32 numbers."""

from __future__ import annotations

import torch
from torch.fx import Node

from q8ta_wgpu.frontend.builder import RefusedError


def operator_of(node: Node) -> str:
    """The operator that a call is imported as. Raises RefusedError where floats do not do what integers do."""
    name = str(node.target)
    if name.startswith("aten.bitwise_") and not is_bool(node):
        raise RefusedError("it computes with the bits of integers: only bools are supported")
    if name.startswith("aten.add.") and is_bool(node):
        return "aten.bitwise_or.Tensor"
    return name


def is_bool(node: object) -> bool:
    """Whether a node's value is a tensor of bools."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return isinstance(value, torch.Tensor) and value.dtype == torch.bool
