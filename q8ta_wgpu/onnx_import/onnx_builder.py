"""The graph builder for importer functions of ONNX's operators. It also tracks the ONNX dtypes of values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from q8ta_wgpu.importing.builder import Builder
from q8ta_wgpu.importing.import_table import ATEN, ONNX
from q8ta_wgpu.ir.graph import INT8X4, INT16X4, RANGES, Array, Graph, Node, QParams, TensorType
from q8ta_wgpu.onnx_import import onnx_nodes
from q8ta_wgpu.onnx_import.onnx_nodes import RESULTS

STORED: dict[int, tuple[str, int]] = {
    TensorProto.INT8: (INT8X4, 0),
    TensorProto.UINT8: (INT8X4, 128),
    TensorProto.INT16: (INT16X4, 0),
    TensorProto.UINT16: (INT16X4, 1 << 15),
    TensorProto.INT4: (INT8X4, 0),
    TensorProto.UINT4: (INT8X4, 0),
}
"""For each dtype of activations, the dtype in the graph, and the number that is subtracted to store them so."""

NARROW: dict[int, tuple[int, int]] = {TensorProto.INT4: (-8, 7), TensorProto.UINT4: (0, 15)}
"""Ranges of dtypes that are narrower than the stored dtype."""


def bounds_of(dtype: int) -> tuple[int, int]:
    """The smallest and largest stored integer of a dtype."""
    return NARROW.get(dtype, RANGES[STORED[dtype][0]])


class _Graph(Graph):
    """A graph that does not reuse the names of constants that are not added to it yet."""

    raw: Mapping[str, Array]

    def fresh(self, hint: str) -> str:
        name = super().fresh(hint)
        while name in self.raw:
            name = super().fresh(f"{name}_")
        return name


class OnnxBuilder(Builder):
    """The builder for ONNX nodes.

    Attributes:
        opsets: versions of operators, by domain.
        made: the ONNX dtype of each value that is stored as integers.
        sized: a node that computed numbers from the shape of a value; empty if none did.
    """

    def __init__(self, opsets: Mapping[str, int]) -> None:
        super().__init__(ATEN)
        self.graph = _Graph()
        self.graph.raw = self.raw
        self.opsets = opsets
        self.made: dict[str, int] = {}
        self.sized = ""

    def shape_of(self, value: str) -> tuple[int, ...]:
        """The shape of a value, also of a constant that is not added to the graph yet."""
        array = self.array(value)
        return array.shape if array is not None else self.type(value).shape

    def onnx(self, name: str, inputs: Sequence[str | None], **attributes: Any) -> Any:
        """Imports a call of another ONNX operator; returns its value."""
        version = self.opsets[""]
        schema = onnx.defs.get_schema(name, version, "")
        operands = list(inputs)
        if not onnx_nodes.is_variadic(schema):
            operands += [None] * (len(schema.inputs) - len(operands))
        call = {"inputs": operands, "outputs": 1, "operator": name, "opset": version}
        own = {key: value for key, value in attributes.items() if value is not None}
        return ONNX[name][1](self, {**onnx_nodes.defaults(schema), **call, **own})

    def raw_constant(self, array: Array, hint: str = "") -> str:
        """Notes a constant of any dtype, which is added to the graph when it is first read."""
        name = self.graph.fresh(hint or self.hint or "constant")
        self.raw[name] = array
        return name

    def add_stored(self, array: Array, q: QParams) -> str:
        """Adds a constant of stored integers."""
        return self.graph.add_constant(self.hint or "constant", array, q.dtype, q)

    def stored(self, x: str, q: QParams, dtype: int, bounds: tuple[int, int]) -> str:
        """Quantizes a float value to integers of an ONNX dtype."""
        x, name = self.operand(x), self.graph.fresh(self.hint)
        self.graph.types[name] = TensorType(self.graph.types[x].shape, q.dtype, q)
        self.append(Node("quantize", (x,), name, {"lo": bounds[0], "hi": bounds[1]}, self.source))
        self.made[name] = dtype
        return name

    def held(self, x: str, dtype: int) -> str:
        """Stores whole float32 numbers as integers of an ONNX dtype, at scale 1."""
        stored, shift = STORED[dtype]
        return self.stored(x, QParams(1.0, -shift, stored), dtype, bounds_of(dtype))

    def permuted(self, x: str, dims: Sequence[int]) -> str:
        """Permutes the dimensions of a value, float or stored as integers."""
        y = self.aten("aten.permute.default", {"self": x, "dims": list(dims)})
        if x in self.made:
            self.made[y] = self.made[x]
        return y

    def wrapped(self, x: str, dtype: int) -> str:
        """Stores whole float32 numbers as integers of a dtype. Numbers out of range wrap around."""
        bits = 8 * np.dtype(RESULTS[dtype]).itemsize
        half = 0.0 if STORED[dtype][1] else float(1 << (bits - 1))
        x = self.emit("affine", (x,), {"factor": 1.0, "term": half}) if half else x
        x = self.emit("remainder", (x,), {"divisor": float(1 << bits)})
        x = self.emit("affine", (x,), {"factor": 1.0, "term": -half}) if half else x
        return self.held(x, dtype)

    def quantization(self, x: str) -> QParams | None:
        """The quantization of a value that is stored as integers; None of others."""
        return self.type(x).q if x in self.graph.types else None

    def numbers(self, x: str) -> str:
        """Converts stored integers to float32 numbers; returns other values as they are."""
        q = self.quantization(x)
        if q is None:
            return x
        real = self.emit("dequantize", (x,))
        dtype = self.made.get(x)
        shift = STORED[dtype][1] if dtype is not None else 0
        if q.scale == 1.0 and q.zero == -shift:
            return real
        steps = self.emit("affine", (real,), {"factor": 1.0 / q.scale, "term": float(q.zero + shift)})
        return self.emit("round", (steps,))


Rule = Callable[[OnnxBuilder, Mapping[str, Any]], "str | list[str]"]
"""An importer function whose arguments also have `dtypes`, the ONNX dtype of each input."""
