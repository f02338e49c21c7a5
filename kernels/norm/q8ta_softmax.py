"""q8ta_softmax: softmax of int8 or int16. Exponentials are products of two table entries, in 2^-31.

Elements whose mask is 0 have weight 0. The weights of a row in which all are masked are zeros or, with `even`, equal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import INT8X4, INT16X4, INT32, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.int8 import MASK, Int8Form, NoInt8Form, QuantizedCall
from q8ta_wgpu.ir.kernel import Kernel, Params
from q8ta_wgpu.ir.layout import ANY_INT8, Shape
from q8ta_wgpu.ir.op import INTEGERS, WIDE_RANGE, Attr, Op, Operand, reads_beside_dim
from q8ta_wgpu.kernels.lib import mask, rows

POWER = 31
"""Fraction bits of a power. The power of a distance 256 h + l is A[h] * B[l] / 2^32."""

QUOTIENT, DIVISOR = 48, 24
"""Bits of the dividend, which is 1 / scale of the result, and of its divisor, the sum of a row."""

MOST = 2.0**40
"""The largest 1 / scale of a result."""


def powers(scale: float) -> Array:
    """The tables A and B, uint32 as the bits of int32 (2, 256): exp(-256 * h * scale) in 2^-31 and exp(-l * scale) in
    2^-32, for the scale of the operand."""
    distance = np.arange(256, dtype=np.float64) * scale
    a, b = np.rint(np.exp(-256 * distance) * 2.0**POWER), np.rint(np.exp(-distance) * 2.0**32)
    return np.stack((a, np.minimum(b, 2.0**32 - 1))).astype(np.uint32).view(np.int32)


def lower(call: QuantizedCall) -> Int8Form:
    """The int8 form of a softmax. Raises NoInt8Form where there is none."""
    x, y, shape, dim = call.quantized(), call.result, call.inputs[0].shape, call.attrs["dim"]
    if text := rows.too_long(shape, dim):
        raise NoInt8Form(text)
    if not 1 / MOST <= y.scale <= MOST:
        raise NoInt8Form(f"the scale {y.scale:.3g} of its result is beyond {MOST:.3g} or its inverse")
    attrs = {"dim": dim, "inverse": 1.0 / y.scale, "even": call.even, "lo": call.lo, "hi": call.hi}
    operands = (0, powers(x.scale))
    return Int8Form("q8ta_softmax", (*operands, MASK) if call.masked else operands, attrs)


def _infer(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    shape, _ = rows.infer(types, attrs)
    text = rows.too_long(shape, attrs["dim"])
    if text or types[1].shape != (2, 256):
        raise GraphError(f"softmax of {shape} with two tables of 256 entries, found {types[1].shape}: {text}")
    for t in types[2:]:
        mask.check_mask("a softmax", t, shape)
    return shape, INT8X4


def _valid_powers(call: Call, arrays: Sequence[Array | None]) -> str:
    assert arrays[1] is not None
    return "must be at most 2^31" if arrays[1][0].view(np.uint32).max() > 1 << POWER else ""


def _dividend(call: Call) -> tuple[int, int]:
    """(mantissa, exponent) with 1 / scale of the result = mantissa * 2^exponent. The mantissa has QUOTIENT bits."""
    fraction, exponent = math.frexp(call.attrs["inverse"])
    return min(round(math.ldexp(fraction, QUOTIENT)), (1 << QUOTIENT) - 1), exponent - QUOTIENT


def _reference(call: Call, arrays: Sequence[Array]) -> Array:
    x, (a, b), axis = arrays[0].astype(np.int64), arrays[1].view(np.uint32).astype(np.uint64), call.attrs["dim"]
    unmasked = mask.spread(arrays[2] != 0, x.shape) if len(arrays) > 2 else np.ones((), bool)
    distance = np.maximum(np.where(unmasked, x, -(1 << 15)).max(axis, keepdims=True) - x, 0)
    found = np.where(unmasked, a[distance >> 8] * b[distance & 255] >> np.uint64(32), 0).astype(np.int64)
    if call.attrs["even"]:
        found = np.where(found.sum(axis, keepdims=True) == 0, int(a[0] * b[0] >> np.uint64(32)), found)
    total = np.maximum(found.sum(axis, keepdims=True), 1 << (POWER - 1))
    dropped = np.frexp(total >> DIVISOR)[1].astype(np.int64)
    dividend, exponent = _dividend(call)
    quotient = (dividend // (total >> dropped)).astype(np.float32)
    factor = np.ldexp(quotient, exponent - dropped).astype(np.float32)
    return arithmetic.stored(call, arithmetic.scaled_steps(found, factor))


def _params(call: Call) -> Params:
    found, (dividend, exponent) = rows.along(call), _dividend(call)
    return {
        **arithmetic.stored_fields(call),
        "inner": np.uint32(found.inner),
        "length": np.uint32(found.length),
        "dividend_high": np.uint32(dividend >> 16),
        "dividend_low": np.uint32(dividend & 0xFFFF),
        "exponent": np.int32(exponent + DIVISOR),
        "even": np.uint32(call.attrs["even"]),
    }


OPS = (
    Op(
        name="q8ta_softmax",
        operands=(
            Operand("x", dtypes=INTEGERS),
            Operand("powers", constant=True, dtypes=(INT32,), valid=_valid_powers),
            mask.MASK,
        ),
        infer=_infer,
        results=(INT16X4,),
        reference=_reference,
        schema={
            **WIDE_RANGE,
            **mask.EVEN,
            "dim": Attr("int", low=0, high=7),
            "inverse": Attr("float", low=1 / MOST, high=MOST),
        },
        reads=reads_beside_dim,
        kernels=(
            rows.int8_kernel(
                "q8ta_softmax.rows",
                ("q8ta_softmax_rows", "mask"),
                rows.of_words,
                _params,
                3,
                rows.are_words,
            ),
            Kernel(
                "q8ta_softmax",
                ("q8ta_softmax", "mask", "map"),
                (ANY_INT8,),
                ANY_INT8,
                params=_params,
                turns=lambda call: 8 * rows.along(call).length,
                cost=lambda call: 2.0 * call.output.numel * rows.along(call).length,
            ),
        ),
        work=lambda call: 3 * call.output.numel,
    ),
)
