"""Importer functions of ONNX's QLinear operators: a float operator between dequantizes and a quantize."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from q8ta_wgpu.onnx_import.onnx_builder import STORED, OnnxBuilder, Rule
from q8ta_wgpu.onnx_import.quantized import dequantize, quantize


def _ends(b: OnnxBuilder, args: Mapping[str, Any], y: str, at: int) -> str:
    """Quantizes a result by the scale and zero point that are inputs `at` and `at + 1`."""
    scale, zero = (*args["inputs"], None)[at : at + 2]
    dtype = args["dtypes"][at + 1] if zero is not None else args["dtypes"][0]
    return quantize(b, y, scale, zero, dtype)


def _real(b: OnnxBuilder, args: Mapping[str, Any], at: int, axis: int = 1) -> str:
    """Dequantizes the operand whose value, scale and zero point are the inputs from `at` on."""
    x, scale, zero = (*args["inputs"], None)[at : at + 3]
    return dequantize(b, x, scale, zero, args["dtypes"][at], axis)


def _bias(b: OnnxBuilder, args: Mapping[str, Any], name: str | None, x_scale: str, w_scale: str) -> str | None:
    """Dequantizes an int32 bias, whose scale is the product of two scales."""
    if name is None:
        return None
    bias, scales = b.array(name), [b.array(scale) for scale in (x_scale, w_scale)]
    if bias is None or scales[0] is None or scales[1] is None:
        raise b.refuse("its bias and scales must be constants")
    step = scales[0].reshape(-1).astype(np.float32) * scales[1].reshape(-1).astype(np.float32)
    return b.constant((bias.astype(np.float32) * step).astype(np.float32), "bias")


def _qlinear_conv(b: OnnxBuilder, args: Mapping[str, Any]) -> str:
    inputs = (*args["inputs"], None)
    bias = _bias(b, args, inputs[8], inputs[1], inputs[4])
    attrs = {name: args.get(name) for name in ("auto_pad", "dilations", "kernel_shape", "pads", "strides")}
    y = b.onnx("Conv", (_real(b, args, 0), _real(b, args, 3, axis=0), bias), group=args.get("group") or 1, **attrs)
    return _ends(b, args, y, 6)


def _qlinear_matmul(b: OnnxBuilder, args: Mapping[str, Any]) -> str:
    return _ends(b, args, b.onnx("MatMul", (_real(b, args, 0), _real(b, args, 3, axis=-1))), 6)


def _qgemm(b: OnnxBuilder, args: Mapping[str, Any]) -> str:
    inputs = (*args["inputs"], None, None, None)
    transposed = bool(args.get("transB"))
    bias = _bias(b, args, inputs[6], inputs[1], inputs[4])
    alpha = 1.0 if args.get("alpha") is None else float(args["alpha"])
    attrs = {"alpha": alpha, "beta": alpha, "transA": args.get("transA") or 0, "transB": int(transposed)}
    y = b.onnx("Gemm", (_real(b, args, 0), _real(b, args, 3, axis=0 if transposed else 1), bias), **attrs)
    return y if inputs[7] is None else _ends(b, args, y, 7)


def _of(name: str, tensors: int = 1, keep: Sequence[str] = ()) -> Rule:
    """The rule of an operator of so many tensors: the float operator of this name, with these attributes."""

    def rule(b: OnnxBuilder, args: Mapping[str, Any]) -> str:
        attrs = {key: args.get(key) for key in keep}
        operands = [_real(b, args, 3 * i) for i in range(tensors)]
        return _ends(b, args, b.onnx(name, operands, **attrs), 3 * tensors)

    return rule


def _channels_first(rule: Rule) -> Rule:
    """A rule that, with the attribute channels_last, permutes images to channels first and the result back."""

    def channels_first(b: OnnxBuilder, args: Mapping[str, Any]) -> str | list[str]:
        if not args.get("channels_last"):
            return rule(b, args)
        x, *others = args["inputs"]
        rank = len(b.type(x).shape)
        order = [0, rank - 1, *range(1, rank - 1)]
        y = rule(b, {**args, "inputs": [b.permuted(x, order), *others]})
        assert isinstance(y, str)
        return b.permuted(y, [0, *range(2, rank), 1])

    return channels_first


def _concat(b: OnnxBuilder, args: Mapping[str, Any]) -> str:
    operands = [_real(b, args, at) for at in range(2, len(args["inputs"]), 3)]
    return _ends(b, args, b.onnx("Concat", operands, axis=int(args["axis"])), 0)


def _where(b: OnnxBuilder, args: Mapping[str, Any]) -> str:
    return _ends(b, args, b.onnx("Where", (args["inputs"][0], _real(b, args, 1), _real(b, args, 4))), 7)


def _softmax(b: OnnxBuilder, args: Mapping[str, Any]) -> str:
    axis = -1 if args.get("axis") is None else int(args["axis"])
    return _ends(b, args, b.onnx("Softmax", (_real(b, args, 0),), axis=axis, opset=args["opset"]), 3)


def _resize(b: OnnxBuilder, args: Mapping[str, Any]) -> str:
    """Linear resize of integers, which ONNX Runtime computes in float32 and truncates."""
    x, *others = args["inputs"]
    attributes = {key: value for key, value in args.items() if key not in ("inputs", "outputs", "operator", "dtypes")}
    y = b.onnx(args["operator"], (b.numbers(x), *others), **attributes)
    return b.held(b.aten("aten.trunc.default", {"self": y}), args["dtypes"][0])


_POOL = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")

RULES: Mapping[str, Rule] = {
    "QLinearConv": _qlinear_conv,
    "com.microsoft.QLinearConv": _channels_first(_qlinear_conv),
    "QLinearMatMul": _qlinear_matmul,
    "com.microsoft.QGemm": _qgemm,
    "com.microsoft.QLinearAdd": _of("Add", 2),
    "com.microsoft.QLinearMul": _of("Mul", 2),
    "com.microsoft.QLinearConcat": _concat,
    "com.microsoft.QLinearWhere": _where,
    "com.microsoft.QLinearSigmoid": _of("Sigmoid"),
    "com.microsoft.QLinearLeakyRelu": _of("LeakyRelu", keep=("alpha",)),
    "com.microsoft.QLinearSoftmax": _softmax,
    "com.microsoft.QLinearAveragePool": _channels_first(_of("AveragePool", keep=_POOL)),
    "com.microsoft.QLinearGlobalAveragePool": _channels_first(_of("GlobalAveragePool")),
    "com.microsoft.QLinearReduceMean": _of("ReduceMean", keep=("axes", "keepdims")),
}


def on_integers(name: str, dtypes: Sequence[int], attributes: Mapping[str, Any]) -> Rule | None:
    """The rule of a float operator that is defined differently for integers; None of most."""
    linear = name in ("Resize", "Upsample") and attributes.get("mode") == "linear"
    return _resize if linear and dtypes[0] in STORED else None
