"""Importer functions of ONNX's sums of integer products (MatMulInteger ...). Results are integers in float32."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from q8ta_wgpu.importing import onnx_calls
from q8ta_wgpu.importing.builder import Builder
from q8ta_wgpu.onnx_import.onnx_builder import OnnxBuilder, Rule
from q8ta_wgpu.onnx_import.qlinear import attributes_of
from q8ta_wgpu.onnx_import.quantized import about_zero, dynamic, weight_of


def _weight(b: OnnxBuilder, w: str, zero: str | None, dtype: int, axis: int) -> str | None:
    """A constant matrix or kernel with its zero points, as an int8 weight of scale 1; None if it is not constant."""
    array, zeros = b.array(w), b.array(zero) if zero is not None else np.zeros((), np.int64)
    if array is None or zeros is None:
        return None
    ones = np.ones(zeros.shape, np.float32)
    return weight_of(b, array, ones, zeros.astype(np.int64), dtype, axis, 0)


def _matmul_integer(b: OnnxBuilder, args: Mapping[str, Any]) -> str:
    x, w, x_zero, w_zero = (*args["inputs"], None, None)[:4]
    return _product(b, x, w, x_zero, w_zero, args["dtypes"][1])


def _product(b: OnnxBuilder, x: str, w: str, x_zero: str | None, w_zero: str | None, dtype: int) -> str:
    weight = _weight(b, w, w_zero, dtype, -1)
    if weight is None or (x_zero is not None and b.type(x_zero).numel > 1):
        return str(b.onnx("MatMul", (about_zero(b, x, x_zero), weight or about_zero(b, w, w_zero))))
    y = b.onnx("MatMul", (b.numbers(x), weight))
    if x_zero is None:
        return str(y)
    array, zeros = b.array(w), b.array(w_zero) if w_zero is not None else np.zeros((), np.int64)
    assert array is not None and zeros is not None
    columns = (array.astype(np.int64) - zeros.astype(np.int64)).sum(-2, keepdims=array.ndim > 2)
    return _without(b, str(y), b.constant(columns.astype(np.float32), "sums"), x_zero)


def _without(b: OnnxBuilder, y: str, sums: str, zero: str) -> str:
    """y - zero * sums."""
    known = b.array(zero)
    if known is not None:
        if not known.any():
            return y
        zero = b.constant(known.reshape(()).astype(np.float32), "zero")
    else:
        zero = b.numbers(zero)
    product = b.aten("aten.mul.Tensor", {"self": sums, "other": zero})
    return b.aten("aten.sub.Tensor", {"self": y, "other": product})


def _conv_integer(b: OnnxBuilder, args: Mapping[str, Any]) -> str:
    x, w, x_zero, w_zero = (*args["inputs"], None, None)[:4]
    weight = _weight(b, w, w_zero, args["dtypes"][1], 0)
    if weight is None:
        raise b.refuse("its kernel is computed while the network runs: it must be a constant")
    attrs = attributes_of(args)
    y = b.onnx("Conv", (b.numbers(x), weight, None), **attrs)
    if x_zero is None:
        return str(y)
    shape = b.type(x).shape[1:]
    if attrs["auto_pad"] in (None, "NOTSET", "VALID") and not any(attrs["pads"] or ()):  # the same sum everywhere
        kernel = b.type(weight).shape[2:]
        shape = (
            shape[0],
            *(1 + dilation * (n - 1) for n, dilation in zip(kernel, attrs["dilations"] or (1, 1, 1), strict=False)),
        )
    ones = b.constant(np.ones((1, *shape), np.float32), "ones")
    return _without(b, str(y), str(b.onnx("Conv", (ones, weight, None), **attrs)), x_zero)


def _integer_to_float(b: OnnxBuilder, args: Mapping[str, Any]) -> str:
    """com.microsoft's MatMulIntegerToFloat."""
    x, w, x_scale, w_scale, x_zero, w_zero, bias = (*args["inputs"], None, None, None)[:7]
    return _scaled(b, _product(b, x, w, x_zero, w_zero, args["dtypes"][1]), x_scale, w_scale, bias)


def _dynamic_matmul(b: OnnxBuilder, args: Mapping[str, Any]) -> str:
    """com.microsoft's DynamicQuantizeMatMul."""
    x, w, w_scale, w_zero, bias = (*args["inputs"], None, None)[:5]
    y, scale, zero = dynamic(b, {"inputs": [x]})
    return _scaled(b, _product(b, y, w, zero, w_zero, args["dtypes"][1]), scale, w_scale, bias)


def _dynamic_lstm(b: OnnxBuilder, args: Mapping[str, Any]) -> list[str]:
    """com.microsoft's DynamicQuantizeLSTM, with weights (direction, input, output). Here each row of the input has a
    scale of its own, and hidden states have more than the 8 bits that the file allows."""
    x, *names = (*args["inputs"], *(None,) * 7)[:12]
    operands: list[str | None] = [b.rounded_rows(x)]
    steps = []
    for at, weight in enumerate(names[:2]):
        constants = (weight, names[7 + 2 * at], names[8 + 2 * at])
        array, scale, zero = (onnx_calls.constant(b, name, "weights") for name in constants)
        if array is None or scale is None or array.ndim != 3:
            raise b.refuse("its weights must have three dimensions and scales")
        if zero is not None and (zero != (128 if array.dtype == np.uint8 else 0)).any():
            raise b.refuse("its weights have zero points: quantize them symmetrically")
        whole = array.astype(np.int64) - (128 if array.dtype == np.uint8 and zero is not None else 0)
        operands.append(b.raw_constant(np.ascontiguousarray(whole.transpose(0, 2, 1))))
        steps.append(np.broadcast_to(scale.reshape(array.shape[0], -1), (array.shape[0], array.shape[2])))
    found: list[str] = b.onnx("LSTM", [*operands, *names[2:7]], steps=steps, **attributes_of(args))
    return found


def _scaled(b: Builder, y: str, x_scale: str, w_scale: str, bias: str | None) -> str:
    scale = b.aten("aten.mul.Tensor", {"self": x_scale, "other": w_scale})
    y = b.aten("aten.mul.Tensor", {"self": y, "other": scale})
    return y if bias is None else b.aten("aten.add.Tensor", {"self": y, "other": bias})


RULES: Mapping[str, Rule] = {
    "MatMulInteger": _matmul_integer,
    "ConvInteger": _conv_integer,
    "com.microsoft.MatMulIntegerToFloat": _integer_to_float,
    "com.microsoft.DynamicQuantizeMatMul": _dynamic_matmul,
    "com.microsoft.DynamicQuantizeLSTM": _dynamic_lstm,
}
