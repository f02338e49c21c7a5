"""ONNX's quantized operators. QDQ becomes `quantize` and `dequantize`; those that compute on integers become a float
operator between them, or a sum of integers that float32 results hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from onnx import TensorProto

from q8ta_wgpu.ir.graph import DTYPES, INT8X4, INT16X4, RANGES, Array, QParams
from q8ta_wgpu.ir.op import FLOAT_MAX, Builder
from q8ta_wgpu.kernels.lib import onnx_calls

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


class QuantizedBuilder(Builder, Protocol):
    """What the functions here need beside the builder of operators."""

    def stored(self, x: str, q: QParams, dtype: int, bounds: tuple[int, int]) -> str:
        """A float value rounded to integers of an ONNX dtype, which are stored."""

    def quantization(self, x: str) -> QParams | None:
        """Scale and zero point of a value that is stored as integers."""

    def numbers(self, x: str) -> str:
        """The integers of a value as float32 numbers."""

    def turned(self, x: str, dims: Sequence[int]) -> str:
        """A value, or stored integers, with its dimensions in another order."""

    def rounded_rows(self, x: str) -> str:
        """A value of which each row is rounded to int8 by a scale that the device chooses."""

    def raw_constant(self, array: Array) -> str:
        """Adds a constant of any dtype."""

    def add_stored(self, array: Array, q: QParams) -> str:
        """Adds a constant of stored integers."""


Rule = Callable[[QuantizedBuilder, Mapping[str, Any]], "str | list[str]"]


def _bounds(dtype: int) -> tuple[int, int]:
    """The smallest and largest stored integer of a dtype."""
    stored, _ = STORED[dtype]
    return NARROW.get(dtype, RANGES[stored])


def _check(b: Builder, dtype: int) -> None:
    if dtype not in STORED:
        raise b.refuse(f"its integers must be {', '.join(map(_name, STORED))}, found {_name(dtype)}")


def _name(dtype: int) -> str:
    return str(TensorProto.DataType.Name(dtype)).lower() if dtype in TensorProto.DataType.values() else str(dtype)


def _along(b: Builder, array: Array, shape: Sequence[int], axis: int, block: int) -> Array:
    """Scales or zero points as they broadcast with a tensor."""
    if array.size == 1:
        return array.reshape(())
    if not -len(shape) <= axis < len(shape):
        raise b.refuse(f"its axis {axis} is none of its {len(shape)} dimensions")
    axis %= len(shape)
    if array.ndim == 1 and not block and array.size == shape[axis]:
        return array.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    if block and array.ndim == len(shape):
        wide = np.repeat(array, block, axis)
        return wide[tuple(slice(n) for n in shape)]
    raise b.refuse(f"its scale {array.shape} does not fit {tuple(shape)} along dimension {axis}")


def _zeros(b: Builder, zero: str | None, scale: Array) -> Array:
    found = onnx_calls.constant(b, zero, "zero point")
    return np.zeros(scale.shape, np.int64) if found is None else found.astype(np.int64)


def quantize(
    b: QuantizedBuilder, x: str, scale: str, zero: str | None, dtype: int, axis: int = 1, block: int = 0
) -> str:
    """A float value as integers of `dtype`."""
    _check(b, dtype)
    scales = onnx_calls.constant(b, scale, "scale")
    assert scales is not None
    if not np.isfinite(scales).all():
        raise b.refuse(
            f"its scale is {scales.max()}: calibration met infinities, as those of a mask. Give the mask finite low "
            "numbers before the network is quantized"
        )
    zeros, (stored, shift), (low, high) = _zeros(b, zero, scales), STORED[dtype], _bounds(dtype)
    array = b.array(x)
    if array is None and scales.size == 1:
        q = QParams(float(scales.reshape(())), int(zeros.reshape(-1)[0]) - shift, stored)
        return b.stored(x, q, dtype, (low, high))
    shape = b.type(x).shape if array is None else array.shape
    steps, offset = _along(b, scales, shape, axis, block), _along(b, zeros, shape, axis, block)
    if array is not None:
        rounded = np.rint(array.astype(np.float32) / steps.astype(np.float32)) + offset - shift
        return b.raw_constant(_integers(np.clip(rounded, low, high).astype(np.int64) + shift, dtype))
    divided = b.aten("aten.div.Tensor", {"self": x, "other": b.constant(steps.astype(np.float32), "scale")})
    moved = b.constant((offset - shift).astype(np.float32), "zero")
    whole = b.aten("aten.add.Tensor", {"self": b.emit("round", (divided,)), "other": moved})
    plain = b.emit("affine", (whole,), {"factor": 1.0, "term": float(shift)}) if shift else whole
    return b.stored(plain, QParams(1.0, -shift, stored), dtype, (low, high))


def _integers(values: Array, dtype: int) -> Array:
    """Numpy's array of a dtype; that of 4 bits is held in 8."""
    return values.astype({"uint4": "uint8", "int4": "int8"}.get(_name(dtype), _name(dtype)))


def dequantize(
    b: QuantizedBuilder, x: str, scale: str, zero: str | None, dtype: int, axis: int = 1, block: int = 0
) -> str:
    """The real numbers that integers of `dtype` stand for: of a constant, of a stored value, or of numbers."""
    array, scales = b.array(x), b.array(scale)
    if array is not None and scales is not None:
        return _constant(b, array, scales, _zeros(b, zero, scales), dtype, axis, block)
    if scales is not None and scales.size == 1 and dtype in STORED and b.quantization(x) is not None:
        stored, shift = STORED[dtype]
        zeros = _zeros(b, zero, scales)
        if b.quantization(x) == QParams(float(scales.reshape(())), int(zeros.reshape(-1)[0]) - shift, stored):
            return b.emit("dequantize", (x,))
    numbers, shape = b.numbers(x), b.type(x).shape
    if scales is None:
        less = numbers if zero is None else b.aten("aten.sub.Tensor", {"self": numbers, "other": b.numbers(zero)})
        return str(b.aten("aten.mul.Tensor", {"self": less, "other": scale}))
    steps = _along(b, scales, shape, axis, block).astype(np.float32)
    offset = _along(b, _zeros(b, zero, scales), shape, axis, block).astype(np.float32)
    less = (
        b.aten("aten.sub.Tensor", {"self": numbers, "other": b.constant(offset, "zero")}) if offset.any() else numbers
    )
    return str(b.aten("aten.mul.Tensor", {"self": less, "other": b.constant(steps, "scale")}))


def _constant(b: QuantizedBuilder, array: Array, scales: Array, zeros: Array, dtype: int, axis: int, block: int) -> str:
    """A dequantized constant: of int8 or int16 its integers, of others its numbers."""
    steps, offset = (_along(b, a, array.shape, axis, block) for a in (scales, zeros))
    whole = array.astype(np.int64)
    eight = dtype in STORED and STORED[dtype][0] == INT8X4
    if array.size == 1 or block or not (eight or (dtype in STORED and scales.size == 1)):
        return b.constant(((whole - offset).astype(np.float32) * steps.astype(np.float32)), "constant")
    stored, shift = STORED[dtype]
    if scales.size == 1:
        q = QParams(float(scales.reshape(())), int(zeros.reshape(-1)[0]) - shift, stored)
        return b.emit("dequantize", (b.add_stored((whole - shift).astype(DTYPES[stored]), q),))
    if not (np.isfinite(scales).all() and (scales > 0).all()):
        raise b.refuse(f"scales must be finite and > 0, found {scales.min()} to {scales.max()}")
    operands = (
        b.constant((whole - shift).astype(np.int8), "weight"),
        b.constant(scales.reshape(-1).astype(np.float32), "scale"),
        b.constant((zeros.reshape(-1) - shift).astype(np.int32), "zero"),
    )
    return b.emit("dequantize_weight", operands, {"axis": axis % array.ndim})


# --- QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear ---


def _quantize_linear(b: QuantizedBuilder, args: Mapping[str, Any]) -> str:
    x, scale, zero = (*args["inputs"], None)[:3]
    dtype = args["dtypes"][2] if zero is not None else args.get("output_dtype") or TensorProto.UINT8
    return quantize(b, x, scale, zero, dtype, _axis(args), int(args.get("block_size") or 0))


def _dequantize_linear(b: QuantizedBuilder, args: Mapping[str, Any]) -> str:
    x, scale, zero = (*args["inputs"], None)[:3]
    return dequantize(b, x, scale, zero, args["dtypes"][0], _axis(args), int(args.get("block_size") or 0))


def _axis(args: Mapping[str, Any]) -> int:
    return 1 if args.get("axis") is None else int(args["axis"])


def _dynamic(b: QuantizedBuilder, args: Mapping[str, Any]) -> list[str]:
    """DynamicQuantizeLinear: scale and zero point of the whole tensor, computed on the device."""
    x = args["inputs"][0]
    ends = []
    for name in ("amin", "amax"):
        end = b.aten(f"aten.{name}.default", {"self": x})
        bounds = {"min": -FLOAT_MAX, "max": 0.0} if name == "amin" else {"min": 0.0, "max": FLOAT_MAX}
        ends.append(b.emit("clamp", (end,), bounds))
    span = b.emit("add", (ends[1], ends[0]), {"alpha": -1.0})
    scale = b.emit("divide", (span,), {"divisor": 255.0})
    from_zero = b.emit("affine", (b.emit("div", (ends[0], scale)),), {"factor": -1.0, "term": 0.0})
    zero = b.emit("round", (b.emit("clamp", (from_zero,), {"min": 0.0, "max": 255.0}),))
    whole = b.emit("round", (b.aten("aten.div.Tensor", {"self": x, "other": scale}),))
    y = b.aten("aten.add.Tensor", {"self": whole, "other": zero})
    return [_held(b, y, TensorProto.UINT8), scale, _held(b, zero, TensorProto.UINT8)]


def _held(b: QuantizedBuilder, x: str, dtype: int) -> str:
    """Whole float32 numbers stored as the integers that they are."""
    stored, shift = STORED[dtype]
    return b.stored(x, QParams(1.0, -shift, stored), dtype, _bounds(dtype))


# --- sums of integers ---


def _about_zero(b: QuantizedBuilder, w: str, zero: str | None, dtype: int, axis: int) -> str | None:
    """A constant matrix or kernel less its zero points, as an int8 weight of scale 1; None of what is no constant."""
    array, zeros = b.array(w), b.array(zero) if zero is not None else np.zeros((), np.int64)
    if array is None or zeros is None:
        return None
    ones = np.ones(zeros.shape, np.float32)
    return _constant(b, array, ones, zeros.astype(np.int64), dtype, axis, 0)


def _less(b: QuantizedBuilder, x: str, zero: str | None) -> str:
    numbers = b.numbers(x)
    return numbers if zero is None else b.aten("aten.sub.Tensor", {"self": numbers, "other": b.numbers(zero)})


def _matmul_integer(b: QuantizedBuilder, args: Mapping[str, Any]) -> str:
    x, w, x_zero, w_zero = (*args["inputs"], None, None)[:4]
    return _product(b, x, w, x_zero, w_zero, args["dtypes"][1])


def _product(b: QuantizedBuilder, x: str, w: str, x_zero: str | None, w_zero: str | None, dtype: int) -> str:
    weight = _about_zero(b, w, w_zero, dtype, -1)
    if weight is None or (x_zero is not None and b.type(x_zero).numel > 1):
        return str(b.onnx("MatMul", (_less(b, x, x_zero), weight or _less(b, w, w_zero))))
    y = b.onnx("MatMul", (b.numbers(x), weight))
    if x_zero is None:
        return str(y)
    array, zeros = b.array(w), b.array(w_zero) if w_zero is not None else np.zeros((), np.int64)
    assert array is not None and zeros is not None
    columns = (array.astype(np.int64) - zeros.astype(np.int64)).sum(-2, keepdims=array.ndim > 2)
    return _without(b, str(y), b.constant(columns.astype(np.float32), "sums"), x_zero)


def _without(b: QuantizedBuilder, y: str, sums: str, zero: str) -> str:
    """y - zero * sums."""
    known = b.array(zero)
    if known is not None:
        if not known.any():
            return y
        zero = b.constant(known.reshape(()).astype(np.float32), "zero")
    else:
        zero = b.numbers(zero)
    part = b.aten("aten.mul.Tensor", {"self": sums, "other": zero})
    return str(b.aten("aten.sub.Tensor", {"self": y, "other": part}))


def _conv_integer(b: QuantizedBuilder, args: Mapping[str, Any]) -> str:
    x, w, x_zero, w_zero = (*args["inputs"], None, None)[:4]
    weight = _about_zero(b, w, w_zero, args["dtypes"][1], 0)
    if weight is None:
        raise b.refuse("its kernel is computed while the network runs: it must be a constant")
    attrs = {name: args[name] for name in ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")}
    y = b.onnx("Conv", (b.numbers(x), weight, None), **attrs)
    if x_zero is None:
        return str(y)
    shape = b.type(x).shape[1:]
    if attrs["auto_pad"] in (None, "NOTSET", "VALID") and not any(attrs["pads"] or ()):  # the same sum at each place
        kernel = b.type(weight).shape[2:]
        shape = (
            shape[0],
            *(1 + apart * (n - 1) for n, apart in zip(kernel, attrs["dilations"] or (1, 1, 1), strict=False)),
        )
    ones = b.constant(np.ones((1, *shape), np.float32), "ones")
    return _without(b, str(y), str(b.onnx("Conv", (ones, weight, None), **attrs)), x_zero)


def _integer_to_float(b: QuantizedBuilder, args: Mapping[str, Any]) -> str:
    """com.microsoft's MatMulIntegerToFloat."""
    x, w, x_scale, w_scale, x_zero, w_zero, bias = (*args["inputs"], None, None, None)[:7]
    return _scaled(b, _product(b, x, w, x_zero, w_zero, args["dtypes"][1]), x_scale, w_scale, bias)


def _dynamic_matmul(b: QuantizedBuilder, args: Mapping[str, Any]) -> str:
    """com.microsoft's DynamicQuantizeMatMul."""
    x, w, w_scale, w_zero, bias = (*args["inputs"], None, None)[:5]
    y, scale, zero = _dynamic(b, {"inputs": [x]})
    return _scaled(b, _product(b, y, w, zero, w_zero, args["dtypes"][1]), scale, w_scale, bias)


def _dynamic_lstm(b: QuantizedBuilder, args: Mapping[str, Any]) -> list[str]:
    """com.microsoft's DynamicQuantizeLSTM: its weights lie by direction, input and output. Rows of the input have
    scales of their own; hidden states have more than the 8 bits that the file allows."""
    x, *names = (*args["inputs"], *(None,) * 7)[:12]
    given: list[str | None] = [b.rounded_rows(x)]
    steps = []
    for at, weight in enumerate(names[:2]):
        parts = (weight, names[7 + 2 * at], names[8 + 2 * at])
        array, scale, zero = (onnx_calls.constant(b, name, "weights") for name in parts)
        if array is None or scale is None or array.ndim != 3:
            raise b.refuse("its weights must have three dimensions and scales")
        if zero is not None and (zero != (128 if array.dtype == np.uint8 else 0)).any():
            raise b.refuse("its weights have zero points: quantize them symmetrically")
        whole = array.astype(np.int64) - (128 if array.dtype == np.uint8 and zero is not None else 0)
        given.append(b.raw_constant(np.ascontiguousarray(whole.transpose(0, 2, 1))))
        steps.append(np.broadcast_to(scale.reshape(array.shape[0], -1), (array.shape[0], array.shape[2])))
    kept = {name: args.get(name) for name in ("activations", "clip", "direction", "hidden_size", "input_forget")}
    found: list[str] = b.onnx("LSTM", [*given, *names[2:7]], steps=steps, **kept)
    return found


def _scaled(b: Builder, y: str, x_scale: str, w_scale: str, bias: str | None) -> str:
    scale = b.aten("aten.mul.Tensor", {"self": x_scale, "other": w_scale})
    y = b.aten("aten.mul.Tensor", {"self": y, "other": scale})
    return y if bias is None else str(b.aten("aten.add.Tensor", {"self": y, "other": bias}))


# --- operators between a dequantize and a quantize ---


def _ends(b: QuantizedBuilder, args: Mapping[str, Any], y: str, at: int) -> str:
    """A result quantized by the scale and zero point given as inputs `at` and the next."""
    scale, zero = (*args["inputs"], None)[at : at + 2]
    dtype = args["dtypes"][at + 1] if zero is not None else args["dtypes"][0]
    return quantize(b, y, scale, zero, dtype)


def _real(b: QuantizedBuilder, args: Mapping[str, Any], at: int, axis: int = 1) -> str:
    """The operand whose value, scale and zero point are given as inputs from `at` on."""
    x, scale, zero = (*args["inputs"], None)[at : at + 3]
    return dequantize(b, x, scale, zero, args["dtypes"][at], axis)


def _bias(b: QuantizedBuilder, args: Mapping[str, Any], name: str | None, x_scale: str, w_scale: str) -> str | None:
    """int32 bias in steps of the product of two scales."""
    if name is None:
        return None
    bias, scales = b.array(name), [b.array(scale) for scale in (x_scale, w_scale)]
    if bias is None or scales[0] is None or scales[1] is None:
        raise b.refuse("its bias and scales must be constants")
    step = scales[0].reshape(-1).astype(np.float32) * scales[1].reshape(-1).astype(np.float32)
    return b.constant((bias.astype(np.float32) * step).astype(np.float32), "bias")


def _qlinear_conv(b: QuantizedBuilder, args: Mapping[str, Any]) -> str:
    inputs = (*args["inputs"], None)
    bias = _bias(b, args, inputs[8], inputs[1], inputs[4])
    attrs = {name: args.get(name) for name in ("auto_pad", "dilations", "kernel_shape", "pads", "strides")}
    y = b.onnx("Conv", (_real(b, args, 0), _real(b, args, 3, axis=0), bias), group=args.get("group") or 1, **attrs)
    return _ends(b, args, y, 6)


def _qlinear_matmul(b: QuantizedBuilder, args: Mapping[str, Any]) -> str:
    return _ends(b, args, b.onnx("MatMul", (_real(b, args, 0), _real(b, args, 3, axis=-1))), 6)


def _qgemm(b: QuantizedBuilder, args: Mapping[str, Any]) -> str:
    inputs = (*args["inputs"], None, None, None)
    turned = bool(args.get("transB"))
    bias = _bias(b, args, inputs[6], inputs[1], inputs[4])
    alpha = 1.0 if args.get("alpha") is None else float(args["alpha"])
    attrs = {"alpha": alpha, "beta": alpha, "transA": args.get("transA") or 0, "transB": int(turned)}
    y = b.onnx("Gemm", (_real(b, args, 0), _real(b, args, 3, axis=0 if turned else 1), bias), **attrs)
    return y if inputs[7] is None else _ends(b, args, y, 7)


def _pairwise(name: str) -> Rule:
    return lambda b, args: _ends(b, args, b.onnx(name, (_real(b, args, 0), _real(b, args, 3))), 6)


def _single(name: str, keep: Sequence[str] = ()) -> Rule:
    """An operator of one tensor, by the name of its float one, and the attributes that it has."""

    def rule(b: QuantizedBuilder, args: Mapping[str, Any]) -> str:
        attrs = {key: args[key] for key in keep if args.get(key) is not None}
        return _ends(b, args, b.onnx(name, (_real(b, args, 0),), **attrs), 3)

    return rule


def _in_front(rule: Rule) -> Rule:
    """With channels_last images are turned before and behind."""

    def turned(b: QuantizedBuilder, args: Mapping[str, Any]) -> str | list[str]:
        if not args.get("channels_last"):
            return rule(b, args)
        x, *others = args["inputs"]
        rank = len(b.type(x).shape)
        order = [0, rank - 1, *range(1, rank - 1)]
        y = rule(b, {**args, "inputs": [b.turned(x, order), *others]})
        assert isinstance(y, str)
        return b.turned(y, [0, *range(2, rank), 1])

    return turned


def _concat(b: QuantizedBuilder, args: Mapping[str, Any]) -> str:
    parts = [_real(b, args, at) for at in range(2, len(args["inputs"]), 3)]
    return _ends(b, args, b.onnx("Concat", parts, axis=int(args["axis"])), 0)


def _where(b: QuantizedBuilder, args: Mapping[str, Any]) -> str:
    return _ends(b, args, b.onnx("Where", (args["inputs"][0], _real(b, args, 1), _real(b, args, 4))), 7)


def _leaky(b: QuantizedBuilder, args: Mapping[str, Any]) -> str:
    alpha = 0.01 if args.get("alpha") is None else float(args["alpha"])
    return _ends(b, args, b.onnx("LeakyRelu", (_real(b, args, 0),), alpha=alpha), 3)


def _softmax(b: QuantizedBuilder, args: Mapping[str, Any]) -> str:
    axis = -1 if args.get("axis") is None else int(args["axis"])
    return _ends(b, args, b.onnx("Softmax", (_real(b, args, 0),), axis=axis, opset=args["opset"]), 3)


def _resize(b: QuantizedBuilder, args: Mapping[str, Any]) -> str:
    """Linear, of integers: what ONNX Runtime computes in float32 and cuts to whole numbers."""
    x, *others = args["inputs"]
    attributes = {key: value for key, value in args.items() if key not in ("inputs", "outputs", "operator", "dtypes")}
    y = b.onnx(args["operator"], (b.numbers(x), *others), **attributes)
    return _held(b, b.aten("aten.trunc.default", {"self": y}), args["dtypes"][0])


_POOL = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")

RULES: Mapping[str, Rule] = {
    "QuantizeLinear": _quantize_linear,
    "DequantizeLinear": _dequantize_linear,
    "com.microsoft.QuantizeLinear": _quantize_linear,
    "com.microsoft.DequantizeLinear": _dequantize_linear,
    "DynamicQuantizeLinear": _dynamic,
    "MatMulInteger": _matmul_integer,
    "ConvInteger": _conv_integer,
    "com.microsoft.MatMulIntegerToFloat": _integer_to_float,
    "com.microsoft.DynamicQuantizeMatMul": _dynamic_matmul,
    "com.microsoft.DynamicQuantizeLSTM": _dynamic_lstm,
    "QLinearConv": _qlinear_conv,
    "com.microsoft.QLinearConv": _in_front(_qlinear_conv),
    "QLinearMatMul": _qlinear_matmul,
    "com.microsoft.QGemm": _qgemm,
    "com.microsoft.QLinearAdd": _pairwise("Add"),
    "com.microsoft.QLinearMul": _pairwise("Mul"),
    "com.microsoft.QLinearConcat": _concat,
    "com.microsoft.QLinearWhere": _where,
    "com.microsoft.QLinearSigmoid": _single("Sigmoid"),
    "com.microsoft.QLinearLeakyRelu": _leaky,
    "com.microsoft.QLinearSoftmax": _softmax,
    "com.microsoft.QLinearAveragePool": _in_front(_single("AveragePool", _POOL)),
    "com.microsoft.QLinearGlobalAveragePool": _in_front(_single("GlobalAveragePool")),
    "com.microsoft.QLinearReduceMean": _single("ReduceMean", ("axes", "keepdims")),
}
"""The importer functions by operator. Their arguments have `dtypes`, ONNX's dtype of each input, too."""


def on_integers(name: str, dtypes: Sequence[int], attributes: Mapping[str, Any]) -> Rule | None:
    """The rule of an operator that computes with stored integers otherwise than with floats; None of most."""
    linear = name in ("Resize", "Upsample") and attributes.get("mode") == "linear"
    return _resize if linear and dtypes[0] in STORED else None
