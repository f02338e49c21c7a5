"""What importer functions of ONNX's operators write to: the graph builder, with what ONNX knows of values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from q8ta_wgpu.frontend.importer.builder import GraphBuilder
from q8ta_wgpu.ir.graph import INT8X4, INT16X4, Array, Graph, Node, QParams, TensorType
from q8ta_wgpu.kernels import ONNX
from q8ta_wgpu.onnx_import import nodes
from q8ta_wgpu.onnx_import.nodes import RESULTS

STORED: dict[int, tuple[str, int]] = {
    TensorProto.INT8: (INT8X4, 0),
    TensorProto.UINT8: (INT8X4, 128),
    TensorProto.INT16: (INT16X4, 0),
    TensorProto.UINT16: (INT16X4, 1 << 15),
    TensorProto.INT4: (INT8X4, 0),
    TensorProto.UINT4: (INT8X4, 0),
}
"""How activations of each dtype are stored, and by how much the stored integers are less."""

NARROW: dict[int, tuple[int, int]] = {TensorProto.INT4: (-8, 7), TensorProto.UINT4: (0, 15)}
"""Ranges of dtypes that do not fill what they are stored in."""


class _Graph(Graph):
    """A graph whose new names are not those of constants that it does not hold yet."""

    raw: Mapping[str, Array]

    def fresh(self, hint: str) -> str:
        name = super().fresh(hint)
        while name in self.raw:
            name = super().fresh(f"{name}_")
        return name


class OnnxBuilder(GraphBuilder):
    """The builder with what ONNX knows of values.

    Attributes:
        opsets: versions of operators, by domain.
        made: the ONNX dtype of stored integers, by value.
        sized: a node that computed something from the sizes of values.
    """

    def __init__(self, opsets: Mapping[str, int]) -> None:
        super().__init__()
        self.graph = _Graph()
        self.graph.raw = self.raw
        self.opsets = opsets
        self.made: dict[str, int] = {}
        self.sized = ""

    def shape_of(self, value: str) -> tuple[int, ...]:
        """The shape of a value, also of a constant that nothing has read yet."""
        array = self.array(value)
        return array.shape if array is not None else self.type(value).shape

    def onnx(self, name: str, inputs: Sequence[str | None], **attributes: Any) -> Any:
        """The value of another operator of the table."""
        version = self.opsets[""]
        schema = onnx.defs.get_schema(name, version, "")
        given = list(inputs)
        if not nodes.is_variadic(schema):
            given += [None] * (len(schema.inputs) - len(given))
        kept = {key: value for key, value in attributes.items() if value is not None}
        call = {"inputs": given, "outputs": 1, "operator": name, "opset": version}
        return ONNX[name][1](self, {**nodes.defaults(schema), **call, **kept})

    def raw_constant(self, array: Array, hint: str = "") -> str:
        """Adds a constant of any dtype, which becomes one of the graph when it is read."""
        name = self.graph.fresh(hint or self.hint or "constant")
        self.raw[name] = array
        return name

    def add_stored(self, array: Array, q: QParams) -> str:
        """Adds a constant of stored integers."""
        return self.graph.add_constant(self.hint or "constant", array, q.dtype, q)

    def stored(self, x: str, q: QParams, dtype: int, bounds: tuple[int, int]) -> str:
        """A float value rounded to integers of an ONNX dtype, which are stored."""
        x, name = self.operand(x), self.graph.fresh(self.hint)
        self.graph.types[name] = TensorType(self.graph.types[x].shape, q.dtype, q)
        self.append(Node("quantize", (x,), name, {"lo": bounds[0], "hi": bounds[1]}, self.source))
        self.made[name] = dtype
        return name

    def permuted(self, x: str, dims: Sequence[int]) -> str:
        """A value, or stored integers, with its dimensions in another order."""
        y = str(self.aten("aten.permute.default", {"self": x, "dims": list(dims)}))
        if x in self.made:
            self.made[y] = self.made[x]
        return y

    def wrapped(self, x: str, dtype: int) -> str:
        """Whole float32 numbers as integers of a dtype; what does not fit wraps, as on processors."""
        (stored, shift), bits = STORED[dtype], 8 * np.dtype(RESULTS[dtype]).itemsize
        half = 0.0 if shift else float(1 << (bits - 1))
        x = self.emit("affine", (x,), {"factor": 1.0, "term": half}) if half else x
        x = self.emit("remainder", (x,), {"divisor": float(1 << bits)})
        x = self.emit("affine", (x,), {"factor": 1.0, "term": -half}) if half else x
        q = QParams(1.0, -shift, stored)
        return self.stored(x, q, dtype, q.range)

    def quantization(self, x: str) -> QParams | None:
        """Scale and zero point of a value that is stored as integers."""
        return self.type(x).q if x in self.graph.types else None

    def numbers(self, x: str) -> str:
        """The integers of a value as float32 numbers; any other value as it is."""
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
"""An importer function: of arguments that have `dtypes`, ONNX's dtype of each input, too."""
