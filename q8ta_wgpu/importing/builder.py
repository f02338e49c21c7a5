"""The graph under construction, to which importer functions of aten and ONNX calls add nodes, and their type."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from q8ta_wgpu.errors import UnsupportedError
from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import BOOL, FLOAT32, INT8X4, INT32, UINT8, Array, Attrs, Graph, Node, QParams, TensorType
from q8ta_wgpu.ir.op import Op, Operand, whole
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.model.verify import infer

_FLOATS = Operand("", dtypes=(FLOAT32,))


class RefusedError(Exception):
    """A call that cannot be imported, with the reason."""


class Builder:
    """A graph and what is known of its values.

    Args:
        aten: operator and importer function by aten overload name.

    Attributes:
        graph: all nodes so far, in order.
        raw: arrays of parameters and buffers by name, which become constants when first read.
        fixed: values that depend on constants alone.
        shifted: values quantized to uint8, stored as int8 that is 128 less.
        source, hint: of the call being imported: its position in the user's model, and a name for its value.
        in_float: why the call being imported stays in float32 (`ValueInfo.in_float`); empty if it need not.
        is_joined: whether that call is one operator with others (`ValueInfo.is_joined`).
    """

    def __init__(self, aten: Mapping[str, tuple[Op, Import]]) -> None:
        self._aten = aten
        self.graph = Graph()
        self.raw: dict[str, Array] = {}
        self.fixed: set[str] = set()
        self.shifted: set[str] = set()
        self.source = ""
        self.hint = ""
        self.in_float = ""
        self.is_joined = False

    def emit(self, op: str, inputs: Sequence[str], attrs: Attrs | None = None) -> str:
        """Adds a node and returns the name of its value, whose type follows from its inputs. Raises GraphError if they
        are invalid."""
        attrs = dict(attrs or {})
        names = self._in_one_dtype(op, inputs, attrs)
        node = Node(op, names, self.graph.fresh(self.hint), attrs, self.source)
        for position, name in enumerate(node.inputs):
            operand = OPS[op].operand(position, node.attrs)
            if operand.constant and not self.is_constant(name):
                raise RefusedError(f"its {operand.name} must follow from parameters alone, but {name} does not")
        self.graph.types[node.output] = infer(self.graph, node)
        self.append(node)
        return node.output

    def _in_one_dtype(self, op: str, names: Sequence[str], attrs: Attrs) -> tuple[str, ...]:
        """The operands of a call in one dtype: integers become float32, unless all operands are integers and the
        operator supports them."""
        operands = [OPS[op].operand(i, attrs) for i in range(len(names))]
        pairs = list(zip(names, operands, strict=True))
        alike = [name for name, o in pairs if INT32 in o.dtypes and o.dtypes[0] == FLOAT32 and not o.constant]
        dtypes = {self._dtype(name) for name in alike if not self._is_integer_array(name)}
        integers = bool(alike) and dtypes <= {INT32} and whole(attrs)
        return tuple(
            self._as_integers(name)
            if (integers or o.dtypes[0] == INT32) and INT32 in o.dtypes
            else self._float(name, o)
            for name, o in pairs
        )

    def _dtype(self, name: str) -> str:
        """The dtype of a value; float32 for a constant of floats that no node reads yet."""
        return FLOAT32 if name in self.raw and name not in self.graph.types else self.graph.types[name].dtype

    def floats(self, value: Any) -> Any:
        """An argument, or each of a list, with computed integers converted to float32."""
        if isinstance(value, (list, tuple)):
            return [self.floats(item) for item in value]
        integers = isinstance(value, str) and value in self.graph.types and self.graph.types[value].dtype == INT32
        return self.emit("to_float32", (value,)) if integers and not self.is_constant(value) else value

    def _is_integer_array(self, name: str) -> bool:
        """Whether a name is that of a constant of integers that fit int32."""
        array = self.raw.get(name)
        return array is not None and array.dtype.kind in "iu" and bool((array.astype(np.int32) == array).all())

    def _as_integers(self, name: str) -> str:
        array = self.raw.get(name)
        return self.operand(self._numbers(name, _FLOATS) if array is not None and array.dtype == bool else name)

    def _float(self, name: str, operand: Operand) -> str:
        """The name of an operand as float32, if it is integers and the operator takes floats."""
        found = self.operand(self._numbers(name, operand))
        integers = self.type(found).dtype == INT32 and FLOAT32 in operand.dtypes
        return self.emit("to_float32", (found,)) if integers else found

    def _numbers(self, name: str, operand: Operand) -> str:
        """The name of a constant of bools or integers as float32, if an operator computes with it and float32 holds its
        values."""
        array = self.raw.get(name)
        if array is None or array.dtype.kind not in "biu" or FLOAT32 not in operand.dtypes:
            return name
        numbers = array.astype(np.float32)
        if (numbers.astype(np.int64) != array).any():
            return name
        made = self.graph.add_constant(name, numbers)
        return self.truth(made) if array.dtype == bool else made

    def result(self, name: str) -> str:
        """The name of a value as a result of the graph. A constant of bools or integers becomes float32."""
        array = self.raw.get(name)
        if array is None or array.dtype.kind not in "biu":
            return self.operand(name)
        if (array.astype(np.float32).astype(np.int64) != array).any():
            raise UnsupportedError(f"output {name} holds integers that float32 does not: they may reach 16777216")
        return self.graph.add_constant(name, array.astype(np.float32))

    def byte_result(self, name: str) -> str:
        """The name of a value of integers in 0..255 as a result that is uint8 for the user: it is stored as int8 that
        is 128 less. A constant stays as it is."""
        if self.is_constant(name):
            return self.result(name)
        if self.type(name).q == UINT8:  # an input of uint8, moved or not
            return name
        self.rounded(self.result(self.floats(name)), UINT8)
        return self.graph.nodes[-1].inputs[0]

    def as_state(self, name: str, dtype: str) -> str:
        """The name of a value as the new value of a state, in the state's dtype (float32 or int32)."""
        if dtype != INT32:
            return self.result(self.floats(name))
        found = self.operand(name)
        return self.emit("to_int32", (found,)) if self.type(found).dtype == FLOAT32 else found

    def append(self, node: Node) -> None:
        """Adds a node whose output already has a type."""
        if all(self.is_constant(name) for name in node.inputs):
            self.fixed.add(node.output)
        if self.in_float:
            self.graph.values.set(node.output, in_float=self.in_float)
        if self.is_joined:
            self.graph.values.set(node.output, is_joined=True)
        self.graph.nodes.append(node)

    def constant(self, array: Array, hint: str = "constant") -> str:
        """Adds a constant and returns its name, which differs from those of arrays in `raw`."""
        while hint in self.raw:
            hint += "_"
        return self.graph.add_constant(hint, array)

    def weight(self, values: Array, scale: Array, zero: Array, axis: int = 0) -> str:
        """A dequantized constant of int8 or int16 with a scale and a zero point for each index of a dimension."""
        arrays = {"weight": values, "scale": scale.astype(np.float32), "zero": zero.astype(np.int32)}
        return self.emit("dequantize_weight", [self.constant(a, name) for name, a in arrays.items()], {"axis": axis})

    def type(self, name: str) -> TensorType:
        """The type of a value."""
        return self.graph.types[self.operand(name)]

    def array(self, name: str) -> Array | None:
        """The array of a constant; None for other values."""
        return self.raw[name] if name in self.raw else self.graph.constants.get(name)

    def is_constant(self, name: str) -> bool:
        """Whether a value depends on constants alone."""
        return name in self.raw or name in self.graph.constants or name in self.fixed

    def truth(self, name: str) -> str:
        """Bools as a float32 value of 0s and 1s, dequantized from int8 at scale 1, which represents them exactly."""
        return self.rounded(name, BOOL)

    def rounded(self, name: str, q: QParams) -> str:
        """A value quantized with a scale and zero point, in their dtype, and dequantized."""
        stored = self.graph.fresh(f"{name}.{q.dtype[:-2]}")
        self.graph.types[stored] = TensorType(self.type(name).shape, q.dtype, q)
        low, high = q.range
        self.append(Node("quantize", (self.operand(name),), stored, {"lo": low, "hi": high}, self.source))
        return self.emit("dequantize", (stored,))

    def rows(self, name: str) -> str:
        """Quantizes each row to int8 by a scale that the device computes from the row. Where the values are int16, a
        pass reads those instead (passes/read_rows.py)."""
        x = self.operand(name)
        scale = self.emit("row_scale", (x,))
        stored = self.graph.fresh(self.hint)
        self.graph.types[stored] = TensorType(self.type(x).shape, INT8X4, arithmetic.row_unit(self.type(x).q))
        self.append(Node("quantize_rows", (x, scale), stored, {}, self.source))
        return stored

    def real_rows(self, rows: str, scale: str) -> str:
        """The float32 values of int8 rows and their scales."""
        return self.emit("mul", (self.emit("dequantize", (rows,)), scale))

    def rounded_rows(self, x: str) -> str:
        """A value whose rows are quantized to int8 by scales that the device computes, and dequantized."""
        rows = self.rows(x)
        return self.real_rows(rows, self.graph.nodes[-1].inputs[1])

    def aten(self, name: str, args: Mapping[str, Any]) -> str:
        """Imports a call of another aten operator with these arguments and returns its result."""
        found = self._aten[name][1](self, args)
        assert isinstance(found, str)
        return found

    def onnx(self, name: str, inputs: Sequence[str | None], **attributes: Any) -> Any:
        """Imports another ONNX operator and returns its result; only where an ONNX file is imported."""
        raise RefusedError(f"{name} is an operator of ONNX")

    def refuse(self, reason: str) -> Exception:
        """The error to raise when a call cannot be imported."""
        return RefusedError(reason)

    def operand(self, name: str) -> str:
        """The name of a value for a node to read. Parameters and buffers become constants when first read."""
        if name in self.raw and name not in self.graph.types:
            array = self.raw[name]
            if array.dtype.kind == "f":
                array = array.astype(np.float32, copy=False)  # arrays of constants share no memory with tensors
            elif array.dtype not in (np.int8, np.int16):
                array = array.astype(np.int32)
            self.graph.types[name] = TensorType(array.shape, str(array.dtype))
            self.graph.constants[name] = np.asarray(array, order="C")
        return name


Import = Callable[[Builder, Mapping[str, Any]], "str | list[str]"]
"""(builder, arguments of a call, values as names) -> the name, or names, of the result.

An aten call's arguments have their names. An ONNX call's are its attributes by name, None where the schema gives no
default, with `inputs`, names or None for those left out, and `opset`."""

Rules = Mapping[str, Mapping[str, Import]]
"""Importer functions by operator of the table, then by aten overload name (`aten.relu.default`) or ONNX operator; one
of another domain is called `com.microsoft.QuickGelu`."""
