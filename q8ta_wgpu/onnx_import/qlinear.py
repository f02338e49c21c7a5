"""Importer functions of ONNX's QLinear operators: a float operator between dequantizes and a quantize."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
from onnx import TensorProto

from q8ta_wgpu.importing import onnx_calls
from q8ta_wgpu.onnx_import.onnx_builder import STORED, OnnxBuilder, Rule
from q8ta_wgpu.onnx_import.quantized import dequantize, quantize


def attributes_of(args: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes among the arguments of a call."""
    return {k: v for k, v in args.items() if k not in ("inputs", "outputs", "operator", "opset", "dtypes")}


def _of(
    operator: str,
    reals: Sequence[int] = (0,),
    result: int = 3,
    plain: Sequence[int] = (),
    bias: int | None = None,
    channel: int = 1,
    **defaults: Any,
) -> Rule:
    """The rule of a float operator on integers.

    Args:
        operator: its name.
        reals: where its operands are among the inputs; the scale and the zero point of each follow it.
        result: where the scale of the result is, which its zero point follows. Without a scale it stays float32.
        plain: where operands are that are not quantized; they come first.
        bias: where an int32 operand is whose scale is the product of those of the others; it comes last.
        channel: the dimension along which the second operand may have a scale for each index.
        defaults: the operator's attributes that a call may leave out.
    """

    def rule(b: OnnxBuilder, args: Mapping[str, Any]) -> str:
        inputs, dtypes, attributes = [*args["inputs"], *[None] * 8], args["dtypes"], attributes_of(args)
        if last := bool(attributes.pop("channels_last", 0)):
            rank = len(b.type(inputs[0]).shape)
            inputs[0] = b.permuted(inputs[0], [0, rank - 1, *range(1, rank - 1)])
        places = reals or range(2, len(args["inputs"]), 3)
        operands = [inputs[at] for at in plain]
        for at in places:
            x, scale, zero = inputs[at : at + 3]
            operands.append(dequantize(b, x, scale, zero, dtypes[at], channel if at else 1))
        if bias is not None and inputs[bias] is not None:
            scales = (onnx_calls.constant(b, inputs[at + 1], "scale") for at in places)
            step = reduce(np.multiply, (s.reshape(-1).astype(np.float32) for s in scales if s is not None))
            operands.append(dequantize(b, inputs[bias], b.raw_constant(step), None, TensorProto.INT32, 0))
        more = {"opset": args["opset"]} if operator == "Softmax" else {}
        y = b.onnx(operator, operands, **{**defaults, **attributes, **more})
        if inputs[result] is None:
            return str(y)
        zero = inputs[result + 1]
        y = quantize(b, y, inputs[result], zero, dtypes[0] if zero is None else dtypes[result + 1])
        return b.permuted(y, [0, *range(2, rank), 1]) if last else y

    return rule


def _gemm(b: OnnxBuilder, args: Mapping[str, Any]) -> str | list[str]:
    """QGemm, whose alpha is also that of the bias."""
    rule = _of("Gemm", (0, 3), 7, bias=6, channel=0 if args.get("transB") else 1)
    return rule(b, {**args, "beta": args.get("alpha", 1.0)})


def _resize(b: OnnxBuilder, args: Mapping[str, Any]) -> str:
    """Linear resize of integers, which ONNX Runtime computes in float32 and truncates."""
    x, *others = args["inputs"]
    y = b.onnx(args["operator"], (b.numbers(x), *others), opset=args["opset"], **attributes_of(args))
    return b.held(b.aten("aten.trunc.default", {"self": y}), args["dtypes"][0])


_CONV = _of("Conv", (0, 3), 6, bias=8, channel=0)

RULES: Mapping[str, Rule] = {
    "QLinearConv": _CONV,
    "com.microsoft.QLinearConv": _CONV,
    "QLinearMatMul": _of("MatMul", (0, 3), 6, channel=-1),
    "com.microsoft.QGemm": _gemm,
    "com.microsoft.QLinearAdd": _of("Add", (0, 3), 6),
    "com.microsoft.QLinearMul": _of("Mul", (0, 3), 6),
    "com.microsoft.QLinearConcat": _of("Concat", (), 0),
    "com.microsoft.QLinearWhere": _of("Where", (1, 4), 7, plain=(0,)),
    "com.microsoft.QLinearSigmoid": _of("Sigmoid"),
    "com.microsoft.QLinearLeakyRelu": _of("LeakyRelu"),
    "com.microsoft.QLinearSoftmax": _of("Softmax", axis=-1),
    "com.microsoft.QLinearAveragePool": _of("AveragePool"),
    "com.microsoft.QLinearGlobalAveragePool": _of("GlobalAveragePool"),
    "com.microsoft.QLinearReduceMean": _of("ReduceMean"),
}


def on_integers(name: str, dtypes: Sequence[int], attributes: Mapping[str, Any]) -> Rule | None:
    """The rule of a float operator that is defined differently for integers; None of most."""
    linear = name in ("Resize", "Upsample") and attributes.get("mode") == "linear"
    return _resize if linear and dtypes[0] in STORED else None
