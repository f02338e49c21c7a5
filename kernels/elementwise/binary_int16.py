"""div, maximum, minimum and comparisons of two tensors with broadcasting, where one or both are int16.

* maximum, minimum: both operands are converted to steps of the result and compared.
* Comparisons: both operands are multiplied by their scales in float32 and compared. The scales are first multiplied by
  a common power of two, so that no product is denormal.
* div: the divisor is shifted to 16 bits. Two integer divisions of the multiplier's mantissa by it give 24 bits of a
  factor for the dividend, so that no float division is needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import INT8X4, INT16X4, Array, Call, QParams
from q8ta_wgpu.ir.int8 import Int8Form, NoInt8Form, QuantizedCall
from q8ta_wgpu.ir.kernel import Params
from q8ta_wgpu.ir.op import WIDE_RANGE, Attr, Op, reads_same_place
from q8ta_wgpu.kernels.elementwise.binary_packed import INTEGER_PAIR, packed_kernels, pair_fields
from q8ta_wgpu.kernels.elementwise.broadcasting import broadcast

Lower = Callable[[QParams, QParams, QParams, QuantizedCall], Int8Form]

_FACTOR = Attr("float", low=2.0**-100, high=2.0**100)
_FACTORS = {"a_multiplier": _FACTOR, "b_multiplier": _FACTOR}
_TOO_FAR = "its scales are too far apart"


def _factors(a: float, b: float) -> dict[str, float]:
    found = {"a_multiplier": float(np.float32(a)), "b_multiplier": float(np.float32(b))}
    if not all(_FACTOR.low <= factor <= _FACTOR.high for factor in found.values()):
        raise NoInt8Form(_TOO_FAR)
    return found


def lower_extreme(op: str) -> Lower:
    """The lowering of a maximum or minimum to `op`."""

    def lower(a: QParams, b: QParams, out: QParams, call: QuantizedCall) -> Int8Form:
        factors = _factors(a.scale / out.scale, b.scale / out.scale)
        return Int8Form(op, (0, 1), {**factors, "lo": call.lo, "hi": call.hi})

    return lower


def lower_comparison(op: str) -> Lower:
    """The lowering of a comparison, whose result is 0 or 1, to `op`."""

    def lower(a: QParams, b: QParams, out: QParams, call: QuantizedCall) -> Int8Form:
        power = 2.0 ** math.floor(math.log2(max(a.scale, b.scale)))
        factors = _factors(a.scale / power, b.scale / power)
        one = int(np.rint(min(1.0 / out.scale, arithmetic.STEPS_LIMIT)))
        return Int8Form(op, (0, 1), {**factors, "one": one, "lo": call.lo, "hi": call.hi})

    return lower


def lower_quotient(a: QParams, b: QParams, out: QParams, call: QuantizedCall) -> Int8Form:
    """The lowering of a division to q16ta_div."""
    multiplier = a.scale / b.scale / out.scale
    if not _FACTOR.low <= multiplier <= _FACTOR.high:
        raise NoInt8Form(_TOO_FAR)
    return Int8Form("q16ta_div", (0, 1), {"multiplier": float(np.float32(multiplier)), "lo": call.lo, "hi": call.hi})


def _operands(call: Call, arrays: Sequence[Array]) -> list[Array]:
    return [x.astype(np.int64) - zero for x, zero in zip(arrays, call.zeros, strict=True)]


def _numbers(call: Call, arrays: Sequence[Array]) -> list[Array]:
    names = ("a_multiplier", "b_multiplier")
    return [
        x.astype(np.float32) * np.float32(call.attrs[name])
        for x, name in zip(_operands(call, arrays), names, strict=True)
    ]


def _extreme(function: Callable[[Array, Array], Array]) -> Callable[[Call, Sequence[Array]], Array]:
    def reference(call: Call, arrays: Sequence[Array]) -> Array:
        a, b = _operands(call, arrays)
        steps = (
            arithmetic.scaled_steps(x, call.attrs[f"{name}_multiplier"]) for name, x in zip("ab", (a, b), strict=True)
        )
        return arithmetic.stored(call, function(*steps))

    return reference


def _comparison(function: Callable[[Array, Array], Array]) -> Callable[[Call, Sequence[Array]], Array]:
    def reference(call: Call, arrays: Sequence[Array]) -> Array:
        return arithmetic.stored(call, function(*_numbers(call, arrays)).astype(np.int64) * call.attrs["one"])

    return reference


def _mantissa(multiplier: float) -> tuple[int, int]:
    """(M, e) with multiplier = M * 2^e, where M has 24 bits."""
    fraction, exponent = math.frexp(multiplier)
    return int(fraction * 2**24), exponent - 24


def _quotient(call: Call, arrays: Sequence[Array]) -> Array:
    a, b = _operands(call, arrays)
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


def _pair_params(call: Call) -> Params:
    factors = {name: np.float32(call.attrs[name]) for name in _FACTORS}
    return {**pair_fields(call), **factors}


def _comparison_params(call: Call) -> Params:
    return {**_pair_params(call), "one": np.int32(call.attrs["one"])}


def _quotient_params(call: Call) -> Params:
    mantissa, exponent = _mantissa(call.attrs["multiplier"])
    return {**pair_fields(call), "mantissa": np.uint32(mantissa), "exponent": np.int32(exponent)}


def _op(
    name: str,
    reference: Callable[[Call, Sequence[Array]], Array],
    schema: dict[str, Attr],
    params: Callable[[Call], Params],
) -> Op:
    return Op(
        name=name,
        operands=INTEGER_PAIR,
        infer=lambda types, attrs: (broadcast(types, attrs)[0], INT16X4),
        results=(INT8X4,),
        reference=reference,
        schema={**WIDE_RANGE, **schema},
        reads=reads_same_place,
        kernels=packed_kernels(name, "binary_int16", params=params),
    )


_ONE = {"one": Attr("int", low=0, high=arithmetic.STEPS_LIMIT)}

OPS = (
    _op("q16ta_maximum", _extreme(np.maximum), _FACTORS, _pair_params),
    _op("q16ta_minimum", _extreme(np.minimum), _FACTORS, _pair_params),
    _op("q16ta_gt", _comparison(np.greater), _FACTORS | _ONE, _comparison_params),
    _op("q16ta_ge", _comparison(np.greater_equal), _FACTORS | _ONE, _comparison_params),
    _op("q16ta_eq", _comparison(np.equal), _FACTORS | _ONE, _comparison_params),
    _op("q16ta_ne", _comparison(np.not_equal), _FACTORS | _ONE, _comparison_params),
    _op("q16ta_div", _quotient, {"multiplier": _FACTOR}, _quotient_params),
)
