"""What importer functions of aten and ONNX calls are: the graph that they add to, and their type."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from q8ta_wgpu.ir.graph import Array, Attrs, QParams, TensorType


class Builder(Protocol):
    """The graph that an importer function adds to."""

    def emit(self, op: str, inputs: Sequence[str], attrs: Attrs | None = None) -> str:
        """Adds a node and returns its value's name."""

    def constant(self, array: Array, hint: str = "constant") -> str:
        """Adds a constant and returns its name."""

    def type(self, name: str) -> TensorType:
        """The type of a value."""

    def array(self, name: str) -> Array | None:
        """The array of a constant value, None for any other value."""

    def is_constant(self, name: str) -> bool:
        """Whether a value depends on constants only: a parameter, also dequantized or permuted."""

    def rounded(self, name: str, q: QParams) -> str:
        """The value quantized to a dtype and dequantized again."""

    def truth(self, name: str) -> str:
        """A value of 0s and 1s stored as bools are: in int8 at scale 1, dequantized."""

    def aten(self, name: str, args: Mapping[str, Any]) -> str:
        """The value of another aten operator of the table with these arguments."""

    def onnx(self, name: str, inputs: Sequence[str | None], **attributes: Any) -> Any:
        """The value of another ONNX operator of the table; of an ONNX call alone."""

    def refuse(self, reason: str) -> Exception:
        """The error to raise where a call cannot be imported, with the reason."""


Import = Callable[[Builder, Mapping[str, Any]], "str | list[str]"]
"""(builder, arguments of a call, values as names) -> the name, or names, of the result.

An aten call's arguments have their names. An ONNX call's are its attributes by name, None where the schema gives no
default, with `inputs`, names or None for those left out, and `opset`."""

Rules = Mapping[str, Mapping[str, Import]]
"""Importer functions by operator of the table, then by aten overload name (`aten.relu.default`) or ONNX operator; one
of another domain is called `com.microsoft.QuickGelu`."""
