"""Importer functions of ONNX's quantizes and dequantizes, with scales from the file or computed at run time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from q8ta_wgpu.importing import onnx_calls
from q8ta_wgpu.importing.builder import Builder
from q8ta_wgpu.ir.graph import DTYPES, INT8X4, Array, QParams
from q8ta_wgpu.ir.op import FLOAT_MAX
from q8ta_wgpu.onnx_import.onnx_builder import STORED, OnnxBuilder, Rule, bounds_of
from q8ta_wgpu.onnx_import.onnx_nodes import dtype_name


def _check(b: Builder, dtype: int) -> None:
    if dtype not in STORED:
        raise b.refuse(f"its integers must be {', '.join(map(dtype_name, STORED))}, found {dtype_name(dtype)}")


def _along(b: Builder, array: Array, shape: Sequence[int], axis: int, block: int) -> Array:
    """Scales or zero points in a shape that broadcasts with a tensor's."""
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


def quantize(b: OnnxBuilder, x: str, scale: str, zero: str | None, dtype: int, axis: int = 1, block: int = 0) -> str:
    """Quantizes a float value to integers of `dtype`; returns the stored integers."""
    _check(b, dtype)
    scales = onnx_calls.constant(b, scale, "scale")
    assert scales is not None
    if not np.isfinite(scales).all():
        raise b.refuse(
            f"its scale is {scales.max()}: calibration met infinities, as those of a mask. Give the mask finite low "
            "numbers before the network is quantized"
        )
    zeros, (stored, shift), (low, high) = _zeros(b, zero, scales), STORED[dtype], bounds_of(dtype)
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
    return b.held(plain, dtype)


def _integers(values: Array, dtype: int) -> Array:
    """Integers as an array of an ONNX dtype; 4-bit integers as 8-bit ones."""
    return values.astype({"uint4": "uint8", "int4": "int8"}.get(dtype_name(dtype), dtype_name(dtype)))


def dequantize(b: OnnxBuilder, x: str, scale: str, zero: str | None, dtype: int, axis: int = 1, block: int = 0) -> str:
    """Dequantizes integers of `dtype`: a constant, a stored value, or float32 numbers."""
    array, scales = b.array(x), b.array(scale)
    if array is not None and scales is not None:
        return weight_of(b, array, scales, _zeros(b, zero, scales), dtype, axis, block)
    if scales is not None and scales.size == 1 and dtype in STORED and b.quantization(x) is not None:
        stored, shift = STORED[dtype]
        zeros = _zeros(b, zero, scales)
        if b.quantization(x) == QParams(float(scales.reshape(())), int(zeros.reshape(-1)[0]) - shift, stored):
            return b.emit("dequantize", (x,))
    if scales is None:
        return b.aten("aten.mul.Tensor", {"self": about_zero(b, x, zero), "other": scale})
    numbers, shape = b.numbers(x), b.type(x).shape
    steps = _along(b, scales, shape, axis, block).astype(np.float32)
    offset = _along(b, _zeros(b, zero, scales), shape, axis, block).astype(np.float32)
    less = (
        b.aten("aten.sub.Tensor", {"self": numbers, "other": b.constant(offset, "zero")}) if offset.any() else numbers
    )
    return b.aten("aten.mul.Tensor", {"self": less, "other": b.constant(steps, "scale")})


def about_zero(b: OnnxBuilder, x: str, zero: str | None) -> str:
    """Integers as float32 numbers, less their zero point if they have one."""
    numbers = b.numbers(x)
    return numbers if zero is None else b.aten("aten.sub.Tensor", {"self": numbers, "other": b.numbers(zero)})


def weight_of(b: OnnxBuilder, array: Array, scales: Array, zeros: Array, dtype: int, axis: int, block: int) -> str:
    """A dequantized constant. It is stored as int8 or int16 if possible, else as float32."""
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
    return b.weight((whole - shift).astype(np.int8), scales.reshape(-1), zeros.reshape(-1) - shift, axis % array.ndim)


# --- QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear ---


def _quantize_linear(b: OnnxBuilder, args: Mapping[str, Any]) -> str:
    x, scale, zero = (*args["inputs"], None)[:3]
    dtype = args["dtypes"][2] if zero is not None else args.get("output_dtype") or TensorProto.UINT8
    return quantize(b, x, scale, zero, dtype, _axis(args), int(args.get("block_size") or 0))


def _dequantize_linear(b: OnnxBuilder, args: Mapping[str, Any]) -> str:
    x, scale, zero = (*args["inputs"], None)[:3]
    return dequantize(b, x, scale, zero, args["dtypes"][0], _axis(args), int(args.get("block_size") or 0))


def _axis(args: Mapping[str, Any]) -> int:
    return 1 if args.get("axis") is None else int(args["axis"])


def dynamic(b: OnnxBuilder, args: Mapping[str, Any]) -> list[str]:
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
    return [b.held(y, TensorProto.UINT8), scale, b.held(zero, TensorProto.UINT8)]


RULES: Mapping[str, Rule] = {
    "QuantizeLinear": _quantize_linear,
    "DequantizeLinear": _dequantize_linear,
    "com.microsoft.QuantizeLinear": _quantize_linear,
    "com.microsoft.DequantizeLinear": _dequantize_linear,
    "DynamicQuantizeLinear": dynamic,
}
