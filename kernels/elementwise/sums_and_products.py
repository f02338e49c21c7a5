"""add and mul of quantized values, q8ta_add, q16ta_add and q8ta_mul, and the lowering of add and mul to them.

A sum with an int16 operand or result is q16ta_add. int32 has no room for 2^16 steps times integer multipliers. So each
operand is multiplied in float32 and rounded to fractions of the result's step before the addition.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import INT8X4, INT16X4, Array, Attrs, Call, QParams, TensorType
from q8ta_wgpu.ir.int8 import Int8Form, NoInt8Form, QuantizedCall
from q8ta_wgpu.ir.kernel import Params
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import RANGE, WIDE_RANGE, Attr, Op, reads_same_place
from q8ta_wgpu.kernels.elementwise import chain
from q8ta_wgpu.kernels.elementwise.binary_packed import (
    INT8_PAIR,
    INTEGER_PAIR,
    packed_kernels,
    pair_fields,
)
from q8ta_wgpu.kernels.elementwise.broadcasting import broadcast


def _infer_sum(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    if not arithmetic.sum_fits(attrs["a_multiplier"], attrs["b_multiplier"], attrs["shift"]):
        raise GraphError(
            f"multipliers {attrs['a_multiplier']} and {attrs['b_multiplier']} with shift {attrs['shift']} pass int32"
        )
    return broadcast(types, attrs)[0], INT8X4


def _infer_product(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    chain.check_product(types)
    return broadcast(types, attrs)[0], INT8X4


def add_multipliers(a: float, b: float, y: float) -> tuple[int, int, int] | None:
    """The integer multipliers of a sum of int8 values.

    Args:
        a, b: scales of the operands, times their signs.
        y: scale of the result.

    Returns:
        (M_a, M_b, shift) with M = rint(scale / y * 2^shift), for the largest shift <= 30 with which the sum cannot
        pass int32. None where that shift is below arithmetic.SMALLEST_SHIFT.
    """
    for shift in range(30, arithmetic.SMALLEST_SHIFT - 1, -1):
        ma, mb = (int(np.rint(s / y * 2.0**shift)) for s in (a, b))
        if arithmetic.sum_fits(ma, mb, shift):
            return ma, mb, shift
    return None


def lower_sum(call: QuantizedCall) -> Int8Form:
    """The int8 form of an add. Raises NoInt8Form where it stays in float32."""
    a, b, out = call.quantized(), call.quantized(1), call.result
    if call.fused:
        return _lower_sum_chain(a, b, call)
    if INT16X4 in (a.dtype, b.dtype, out.dtype):
        return _lower_int16_sum(a, b, out, call)
    found = add_multipliers(a.scale, call.attrs["alpha"] * b.scale, out.scale)
    if found is None:
        raise NoInt8Form(f"its scales {a.scale:.3g}, {b.scale:.3g} and {out.scale:.3g} are too far apart for int32")
    attrs = {
        "a_multiplier": found[0],
        "b_multiplier": found[1],
        "shift": found[2],
        "lo": call.lo,
        "hi": call.hi,
    }
    return Int8Form("q8ta_add", (0, 1), attrs)


def _lower_sum_chain(a: QParams, b: QParams, call: QuantizedCall) -> Int8Form:
    """The int8 form of an add at the start of a chain. The multipliers are those for a result with the larger operand's
    scale, so that the sum does not depend on the scale of the chain's result."""
    scales = a.scale, call.attrs["alpha"] * b.scale
    reached = a.span * a.scale + b.span * abs(scales[1])
    if INT16X4 in (a.dtype, b.dtype):
        step = 2.0 ** np.ceil(np.log2(reached)) / 2**28
        multipliers = {f"{name}_multiplier": float(np.float32(s / step)) for name, s in zip("ab", scales, strict=True)}
        return chain.lower(call, "q16ta_add_chain", step, reached, (0, 1), multipliers)
    larger = max(map(abs, scales))
    found = add_multipliers(*scales, larger)
    if found is None:
        raise NoInt8Form(f"its scales {a.scale:.3g} and {b.scale:.3g} are too far apart for int32")
    attrs = {"a_multiplier": found[0], "b_multiplier": found[1]}
    return chain.lower(call, "q8ta_add_chain", larger / 2.0 ** found[2], reached, (0, 1), attrs)


def _lower_int16_sum(a: QParams, b: QParams, y: QParams, call: QuantizedCall) -> Int8Form:
    steps = 2.0 ** arithmetic.fraction(y.dtype) / y.scale  # fractions of a result's step for the real value 1
    factors = float(np.float32(a.scale * steps)), float(np.float32(call.attrs["alpha"] * b.scale * steps))
    if not arithmetic.terms_fit(a.span * factors[0], b.span * factors[1]):
        raise NoInt8Form(f"its operands' scales {a.scale:.3g} and {b.scale:.3g} are too large for {y.scale:.3g}")
    attrs = {"a_multiplier": factors[0], "b_multiplier": factors[1], "lo": call.lo, "hi": call.hi}
    return Int8Form("q16ta_add", (0, 1), attrs)


def lower_product(call: QuantizedCall) -> Int8Form:
    """The int8 form of a mul. Raises NoInt8Form where it stays in float32."""
    a, b, out = call.quantized(), call.quantized(1), call.result
    if call.fused:
        scale = a.scale * b.scale
        return chain.lower(call, "q8ta_mul_chain", scale, scale * a.span * b.span, (0, 1), {})
    multiplier = np.float32(a.scale * b.scale / out.scale)
    if not np.isfinite(multiplier):
        raise NoInt8Form("the ratio of its scales is not a finite float32")
    return Int8Form("q8ta_mul", (0, 1), {"multiplier": float(multiplier), "lo": call.lo, "hi": call.hi})


def _add_int8(call: Call, arrays: Sequence[Array]) -> Array:
    a, b = (x.astype(np.int64) - zero for x, zero in zip(arrays, call.zeros, strict=True))
    v = a * call.attrs["a_multiplier"] + b * call.attrs["b_multiplier"]
    return arithmetic.stored(call, arithmetic.rte(v, call.attrs["shift"]))


def _add_int16(call: Call, arrays: Sequence[Array]) -> Array:
    factors = call.attrs["a_multiplier"], call.attrs["b_multiplier"]
    a, b = (
        arithmetic.scaled_term(x.astype(np.int64) - zero, factor)
        for x, zero, factor in zip(arrays, call.zeros, factors, strict=True)
    )
    return arithmetic.stored(call, arithmetic.rte(a + b, arithmetic.fraction(call.q.dtype)))


def _mul(call: Call, arrays: Sequence[Array]) -> Array:
    a, b = (x.astype(np.int64) - zero for x, zero in zip(arrays, call.zeros, strict=True))
    return arithmetic.stored(call, arithmetic.scaled_steps(a * b, call.attrs["multiplier"]))


def _int8_sum_params(call: Call) -> Params:
    attrs, (a_zero, b_zero) = call.attrs, call.zeros
    offset = a_zero * attrs["a_multiplier"] + b_zero * attrs["b_multiplier"]
    return {
        **arithmetic.stored_fields(call),
        **{name: np.int32(attrs[name]) for name in ("a_multiplier", "b_multiplier")},
        "offset": np.uint32(-offset & 0xFFFFFFFF).view(np.int32),
        "shift": np.uint32(attrs["shift"]),
    }


def _mul_params(call: Call) -> Params:
    return {**pair_fields(call), "multiplier": np.float32(call.attrs["multiplier"])}


def _int16_sum_params(call: Call) -> Params:
    return {
        **pair_fields(call),
        **{name: np.float32(call.attrs[name]) for name in ("a_multiplier", "b_multiplier")},
        "shift": np.uint32(arithmetic.fraction(call.q.dtype)),
    }


q8ta_add = Op(
    name="q8ta_add",
    operands=INT8_PAIR,
    infer=_infer_sum,
    reference=_add_int8,
    reads=reads_same_place,
    schema={
        **RANGE,
        "a_multiplier": Attr("int", low=-arithmetic.INT32_MAX, high=arithmetic.INT32_MAX),
        "b_multiplier": Attr("int", low=-arithmetic.INT32_MAX, high=arithmetic.INT32_MAX),
        "shift": Attr("int", low=arithmetic.SMALLEST_SHIFT, high=30),
    },
    kernels=packed_kernels("q8ta_add", params=_int8_sum_params),
)

_FACTOR = Attr("float", low=-3.4e38, high=3.4e38)

q16ta_add = Op(
    name="q16ta_add",
    operands=INTEGER_PAIR,
    infer=lambda types, attrs: (broadcast(types, attrs)[0], INT16X4),
    results=(INT8X4,),
    reference=_add_int16,
    reads=reads_same_place,
    schema={**WIDE_RANGE, "a_multiplier": _FACTOR, "b_multiplier": _FACTOR},
    kernels=packed_kernels("q16ta_add", params=_int16_sum_params),
)

q8ta_mul = Op(
    name="q8ta_mul",
    operands=INTEGER_PAIR,
    infer=_infer_product,
    results=(INT16X4,),
    reference=_mul,
    reads=reads_same_place,
    schema={**WIDE_RANGE, "multiplier": Attr("float", low=0, high=3.4e38)},
    kernels=packed_kernels("q8ta_mul", params=_mul_params),
)
