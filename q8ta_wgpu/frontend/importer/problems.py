"""The reasons why a torch program cannot be imported."""

from __future__ import annotations

import torch

from q8ta_wgpu.frontend.nodes import called, source_of
from q8ta_wgpu.importing import problems

_WAY_OUT = (
    "Write these with operators of the table (docs/operators.md), compute them before or after the model, "
    'leave them to PyTorch (unsupported="torch", given to quantize and compile), or add them (CONTRIBUTING.md).'
)


class Problems(problems.Problems):
    """The reasons why a torch program cannot be imported.

    Attributes:
        nodes: the reason for each node that has one.
    """

    def __init__(self) -> None:
        super().__init__(_WAY_OUT)
        self.nodes: dict[str, str] = {}

    def add_node(self, reason: str, node: torch.fx.Node) -> None:
        """Adds a problem of a call or an input."""
        is_call = node.op == "call_function"
        self.add(_name(called(node)) if is_call else "", reason, source_of(node) or node.name)
        self.nodes.setdefault(node.name, reason)


def _name(target: object) -> str:
    """The name of a call's operator: `aten.add.Tensor`. For functions of Python and of torch it omits the memory
    address in their text."""
    return str(getattr(target, "__name__", target)) if callable(target) and "<" in str(target) else str(target)
