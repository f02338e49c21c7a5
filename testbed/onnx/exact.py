"""ONNX files whose integer products every processor computes alike.

Without VNNI ONNX Runtime multiplies 8-bit activations by int8 weights with instructions that add two products in 16
bits and saturate: of random bytes most sums are wrong. Here each such product is written as operators that are exact:
of int32 for matrices. ONNX Runtime has convolutions in float32 alone, which hold whole numbers up to 2^24.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from q8ta_wgpu.ir.graph import Array


def exact(data: bytes) -> bytes:
    """The file with its integer products written as exact operators. Values keep their names."""
    model = onnx.ModelProto.FromString(data)
    writer = _Writer({tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer})
    for node in model.graph.node:
        write = _FORMS.get(node.op_type)
        if write is None:
            writer.nodes.append(node)
        else:
            write(writer, node, [*node.input, *[""] * 12])
    del model.graph.node[:]
    model.graph.node.extend(writer.nodes)
    model.graph.initializer.extend(writer.added)
    return bytes(model.SerializeToString())


class _Writer:
    """The nodes written so far, and the constants that they need."""

    def __init__(self, constants: dict[str, Array]) -> None:
        self.constants = constants
        self.nodes: list[onnx.NodeProto] = []
        self.added: list[onnx.TensorProto] = []

    def constant(self, value: Any) -> str:
        name = f"exact.constant{len(self.added)}"
        self.added.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(self, op: str, *inputs: str, result: str = "", **attributes: Any) -> str:
        name = result or f"exact.value{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def less_zero(self, x: str, zero: str, kind: int, shape: tuple[int, ...] = ()) -> str:
        """An operand less its zero point; with one for each channel, of this shape."""
        x = self.node("Cast", x, to=kind)
        if not zero:
            return x
        at = self.node("Cast", zero, to=kind)
        if shape and self.constants[zero].size > 1:
            at = self.node("Reshape", at, self.constant(np.array(shape)))
        return self.node("Sub", x, at)

    def matmul(self, x: str, x_zero: str, w: str, w_zero: str, result: str = "") -> str:
        """Sums of products of matrices, in int32."""
        operands = (self.less_zero(*pair, TensorProto.INT32) for pair in ((x, x_zero), (w, w_zero)))
        return self.node("MatMul", *operands, result=result)

    def conv(self, x: str, x_zero: str, w: str, w_zero: str, node: onnx.NodeProto, result: str = "") -> str:
        """Sums of a convolution, in int32. The activation is sixteen times a whole number, and what is left of that:
        each of the two has sums below 2^24 where the kernel has fewer than 4,112 elements."""
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        x = self.less_zero(x, x_zero, TensorProto.FLOAT)
        w = self.less_zero(w, w_zero, TensorProto.FLOAT, (-1, 1, 1, 1))
        sixteen = self.constant(np.float32(16))
        whole = self.node("Mul", self.node("Floor", self.node("Div", x, sixteen)), sixteen)
        parts = (whole, self.node("Sub", x, whole))
        sums = (self.node("Cast", self.node("Conv", p, w, **attributes), to=TensorProto.INT32) for p in parts)
        return self.node("Add", *sums, result=result)

    def rounded(self, sums: str, factor: Array, zero: str, result: str) -> None:
        """Sums times a factor, rounded to the 8-bit integers that the zero point is one of."""
        kind = self.constants[zero].dtype
        y = self.node("Round", self.node("Mul", self.node("Cast", sums, to=TensorProto.FLOAT), self.constant(factor)))
        y = self.node("Add", y, self.node("Cast", zero, to=TensorProto.FLOAT))
        bounds = (self.constant(np.float32(bound)) for bound in (np.iinfo(kind).min, np.iinfo(kind).max))
        self.node("Cast", self.node("Clip", y, *bounds), to=helper.np_dtype_to_tensor_dtype(kind), result=result)

    def factor(self, x: str, w: str, y: str = "") -> Array:
        """The product of two scales over a third."""
        found = np.float32(self.constants[x]) * self.constants[w].astype(np.float32)
        return np.asarray(found / self.constants[y] if y else found, np.float32)


def _matmul_integer(writer: _Writer, node: onnx.NodeProto, of: list[str]) -> None:
    writer.matmul(of[0], of[2], of[1], of[3], node.output[0])


def _conv_integer(writer: _Writer, node: onnx.NodeProto, of: list[str]) -> None:
    writer.conv(of[0], of[2], of[1], of[3], node, node.output[0])


def _qlinear_matmul(writer: _Writer, node: onnx.NodeProto, of: list[str]) -> None:
    sums = writer.matmul(of[0], of[2], of[3], of[5])
    writer.rounded(sums, writer.factor(of[1], of[4], of[6]), of[7], node.output[0])


def _qlinear_conv(writer: _Writer, node: onnx.NodeProto, of: list[str]) -> None:
    sums = writer.conv(of[0], of[2], of[3], of[5], node)
    if of[8]:
        sums = writer.node("Add", sums, writer.node("Reshape", of[8], writer.constant(np.array([1, -1, 1, 1]))))
    factor = writer.factor(of[1], of[4], of[6])
    writer.rounded(sums, factor.reshape(-1, 1, 1) if factor.size > 1 else factor, of[7], node.output[0])


def _qgemm(writer: _Writer, node: onnx.NodeProto, of: list[str]) -> None:
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    assert not attributes.get("transA") and attributes.get("alpha", 1.0) == 1.0
    x = writer.less_zero(of[0], of[2], TensorProto.INT32)
    turned = attributes.get("transB", 0)
    w = writer.less_zero(of[3], of[5], TensorProto.INT32, (-1, 1) if turned else (1, -1))
    sums = writer.node("MatMul", x, writer.node("Transpose", w, perm=[1, 0]) if turned else w)
    if of[6]:
        sums = writer.node("Add", sums, of[6])
    writer.rounded(sums, writer.factor(of[1], of[4], of[7]), of[8], node.output[0])


def _dynamic_matmul(writer: _Writer, node: onnx.NodeProto, of: list[str]) -> None:
    names = [f"{node.output[0]}.{part}" for part in ("rounded", "scale", "zero")]
    writer.nodes.append(helper.make_node("DynamicQuantizeLinear", [of[0]], names))
    sums = writer.node("Cast", writer.matmul(names[0], names[2], of[1], of[3]), to=TensorProto.FLOAT)
    factor = writer.node("Mul", names[1], of[2])
    y = writer.node("Mul", sums, factor, result="" if of[4] else node.output[0])
    if of[4]:
        writer.node("Add", y, of[4], result=node.output[0])


def _dynamic_lstm(writer: _Writer, node: onnx.NodeProto, of: list[str]) -> None:
    """With the weights that the integers stand for, and activations that are not rounded."""
    weights = list[str]()
    for name, scale, zero in ((of[1], *of[8:10]), (of[2], *of[10:12])):
        q, step, at = (writer.constants[n].astype(np.float32) for n in (name, scale, zero))
        directions = len(q)
        real = (q - at.reshape(directions, 1, -1)) * step.reshape(directions, 1, -1)
        weights.append(writer.constant(np.ascontiguousarray(real.transpose(0, 2, 1))))
    made = helper.make_node("LSTM", [of[0], *weights, *of[3:8]], node.output)
    made.attribute.extend(node.attribute)
    writer.nodes.append(made)


_FORMS = {
    "MatMulInteger": _matmul_integer,
    "ConvInteger": _conv_integer,
    "QLinearMatMul": _qlinear_matmul,
    "QLinearConv": _qlinear_conv,
    "QGemm": _qgemm,
    "DynamicQuantizeMatMul": _dynamic_matmul,
    "DynamicQuantizeLSTM": _dynamic_lstm,
}
"""Operators whose products of integers depend on the processor, and what writes each as exact ones."""
