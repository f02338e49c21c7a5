"""Why a program cannot be imported."""

from __future__ import annotations

import torch

from q8ta_wgpu.errors import UnsupportedError
from q8ta_wgpu.frontend.nodes import source_of

_WAY_OUT = (
    "Write these with operators of the table (kernels/README.md), compute them before or after the model, "
    'leave them to PyTorch (unsupported="torch", given to quantize and compile), or add them (CONTRIBUTING.md).'
)


def _name(target: object) -> str:
    """What a call's operator is known by: `aten.add.Tensor`; of Python's own functions and torch's, without the
    address in memory that their text has."""
    return str(getattr(target, "__name__", target)) if callable(target) and "<" in str(target) else str(target)


class Problems:
    """Why a program cannot be imported: equal causes on one line, in the order they were met.

    Attributes:
        nodes: the reason at each node that has one.
    """

    def __init__(self) -> None:
        self.places: dict[tuple[str, str], list[str]] = {}
        self.nodes: dict[str, str] = {}

    def add(self, reason: str, node: torch.fx.Node) -> None:
        """Notes a problem of a call or an input."""
        called = node.op == "call_function"
        operator_name, place = (_name(node.target), source_of(node) or node.name) if called else ("", "")
        self.places.setdefault((operator_name, reason), []).append(place)
        self.nodes.setdefault(node.name, reason)

    def check(self) -> None:
        """Raises UnsupportedError where there are problems."""
        if self:
            raise UnsupportedError(f"cannot import this program:\n{self}\n{_WAY_OUT}")

    def __bool__(self) -> bool:
        return bool(self.places)

    def __str__(self) -> str:
        return "\n".join(f"  {self._line(*cause, places)}" for cause, places in self.places.items())

    def _line(self, name: str, reason: str, places: list[str]) -> str:
        if not name:
            return reason
        calls = f" and {len(places) - 1} more calls" if len(places) > 1 else ""
        return f"{name} at {places[0]}{calls}: {reason}"
