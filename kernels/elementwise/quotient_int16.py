"""div of two tensors with broadcasting, where one or both are int16.

The divisor is shifted to 16 bits. Two integer divisions of the multiplier's mantissa by it give 24 bits of a factor for
the dividend, so that no float division is needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import INT8X4, INT16X4, Array, Call, QParams
from q8ta_wgpu.ir.int8 import Int8Form, NoInt8Form, QuantizedCall
from q8ta_wgpu.ir.kernel import Params
from q8ta_wgpu.ir.op import WIDE_RANGE, Attr, Op, reads_same_place
from q8ta_wgpu.kernels.elementwise.binary_packed import INTEGER_PAIR, packed_kernels, pair_fields
from q8ta_wgpu.kernels.elementwise.broadcasting import broadcast

_FACTOR = Attr("float", low=2.0**-100, high=2.0**100)


def lower(a: QParams, b: QParams, out: QParams, call: QuantizedCall) -> Int8Form:
    """The lowering of a division to q16ta_div."""
    multiplier = a.scale / b.scale / out.scale
    if not _FACTOR.low <= multiplier <= _FACTOR.high:
        raise NoInt8Form("its scales are too far apart")
    return Int8Form("q16ta_div", (0, 1), {"multiplier": float(np.float32(multiplier)), "lo": call.lo, "hi": call.hi})


def _mantissa(multiplier: float) -> tuple[int, int]:
    """(M, e) with multiplier = M * 2^e, where M has 24 bits."""
    fraction, exponent = math.frexp(multiplier)
    return int(fraction * 2**24), exponent - 24


def _reference(call: Call, arrays: Sequence[Array]) -> Array:
    a, b = (x.astype(np.int64) - zero for x, zero in zip(arrays, call.zeros, strict=True))
    mantissa, exponent = _mantissa(call.attrs["multiplier"])
    size = np.maximum(np.abs(b), 1)
    shift = 16 - np.frexp(size.astype(np.float64))[1]
    divisor = size << shift
    factor = ((mantissa // divisor) << 16) + ((mantissa % divisor) << 16) // divisor
    power = np.clip(exponent + shift - 16, -100, 60)
    product = (np.sign(b) * a).astype(np.float32) * factor.astype(np.float32)
    limit = np.float32(arithmetic.STEPS_LIMIT)
    steps = np.clip(np.rint(np.ldexp(product, power)), -limit, limit).astype(np.int64)
    return arithmetic.stored(call, np.where(b == 0, np.sign(a) * int(limit), steps))


def _params(call: Call) -> Params:
    mantissa, exponent = _mantissa(call.attrs["multiplier"])
    return {**pair_fields(call), "mantissa": np.uint32(mantissa), "exponent": np.int32(exponent)}


q16ta_div = Op(
    name="q16ta_div",
    operands=INTEGER_PAIR,
    infer=lambda types, attrs: (broadcast(types, attrs)[0], INT16X4),
    results=(INT8X4,),
    reference=_reference,
    schema={**WIDE_RANGE, "multiplier": _FACTOR},
    reads=reads_same_place,
    kernels=packed_kernels("q16ta_div", "quotient_int16", params=_params),
)
