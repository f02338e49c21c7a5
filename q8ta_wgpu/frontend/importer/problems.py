"""The reasons why a program cannot be imported."""

from __future__ import annotations

import torch

from q8ta_wgpu.errors import UnsupportedError
from q8ta_wgpu.frontend.nodes import called, source_of

_WAY_OUT = (
    "Write these with operators of the table (docs/operators.md), compute them before or after the model, "
    'leave them to PyTorch (unsupported="torch", given to quantize and compile), or add them (CONTRIBUTING.md).'
)


def _name(target: object) -> str:
    """The name of a call's operator: `aten.add.Tensor`. For functions of Python and of torch it omits the memory
    address in their text."""
    return str(getattr(target, "__name__", target)) if callable(target) and "<" in str(target) else str(target)


class Problems:
    """The reasons why a program cannot be imported. Equal causes share a line, in the order in which they were found.

    Attributes:
        nodes: the reason for each node that has one.
    """

    def __init__(self) -> None:
        self.positions: dict[tuple[str, str], list[str]] = {}
        self.nodes: dict[str, str] = {}

    def add(self, reason: str, node: torch.fx.Node) -> None:
        """Adds a problem of a call or an input."""
        is_call = node.op == "call_function"
        operator_name, position = (_name(called(node)), source_of(node) or node.name) if is_call else ("", "")
        self.positions.setdefault((operator_name, reason), []).append(position)
        self.nodes.setdefault(node.name, reason)

    def check(self) -> None:
        """Raises UnsupportedError if there are problems."""
        if self:
            raise UnsupportedError(f"cannot import this program:\n{self}\n{_WAY_OUT}")

    def __bool__(self) -> bool:
        return bool(self.positions)

    def __str__(self) -> str:
        return "\n".join(f"  {self._line(*cause, positions)}" for cause, positions in self.positions.items())

    def _line(self, name: str, reason: str, positions: list[str]) -> str:
        if not name:
            return reason
        calls = f" and {len(positions) - 1} more calls" if len(positions) > 1 else ""
        return f"{name} at {positions[0]}{calls}: {reason}"
