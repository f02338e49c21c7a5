"""add and mul with broadcasting, and their int8 forms. A subtraction adds -alpha times its second operand.

A sum with an int16 operand or result is q16ta_add. int32 has no room for 2^16 steps times integer multipliers, so each
operand is multiplied in float32 and rounded to a fraction of the result's step before the addition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import FLOAT32, INT8X4, INT16X4, INT32, Array, Attrs, Call, QParams, TensorType
from q8ta_wgpu.ir.int8 import Arithmetic, Int8Form, QuantizedCall, ToInt8
from q8ta_wgpu.ir.kernel import ONLY_4W, Kernel, Params, eight_words, four_words, no_params
from q8ta_wgpu.ir.layout import ANY_INT8, Shape
from q8ta_wgpu.ir.op import (
    INTEGERS,
    NUMBERS,
    RANGE,
    WIDE_RANGE,
    Attr,
    Builder,
    Case,
    Import,
    Op,
    Operand,
    number,
    one_dtype,
    reads_same_place,
)
from q8ta_wgpu.kernels.elementwise import chain, flat

INT8_PAIR = (Operand("a", dtypes=(INT8X4,)), Operand("b", dtypes=(INT8X4,)))
INTEGER_PAIR = (Operand("a", dtypes=INTEGERS), Operand("b", dtypes=INTEGERS))


def broadcast(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    """The shape rule of float32 operators of two values."""
    a, b = types[0].shape, types[1].shape
    try:
        shape = np.broadcast_shapes(a, b)
    except ValueError:
        raise GraphError(f"shapes {a} and {b} do not broadcast") from None
    if len(shape) > 4 and a[: len(a) - 3] != b[: len(b) - 3]:
        raise GraphError(f"shapes {a} and {b} broadcast in a dimension left of the last three; expand first")
    return tuple(shape), FLOAT32


def broadcast_numbers(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    """The shape rule of operators of two values of one dtype."""
    return broadcast(types, attrs)[0], one_dtype(types, attrs)


def _infer_sum(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    if not arithmetic.sum_fits(attrs["a_multiplier"], attrs["b_multiplier"], attrs["shift"]):
        raise GraphError(
            f"multipliers {attrs['a_multiplier']} and {attrs['b_multiplier']} with shift {attrs['shift']} pass int32"
        )
    return broadcast(types, attrs)[0], INT8X4


def _infer_product(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    chain.check_product(types)
    return broadcast(types, attrs)[0], INT8X4


def _float_params(call: Call) -> Params:
    return {"alpha": number(call.attrs["alpha"], call.output.dtype)} if "alpha" in call.attrs else {}


def _float_reference(function: Callable[[Array, Array, Any], Array]) -> Callable[[Call, Sequence[Array]], Array]:
    """A sum or a product: of int32 as in two's complement."""

    def reference(call: Call, arrays: Sequence[Array]) -> Array:
        alpha = call.attrs.get("alpha", 1.0)
        if call.output.dtype == INT32:
            a, b = (x.astype(np.int64) for x in arrays)
            return function(a, b, int(alpha)).astype(np.int32)
        return function(arrays[0], arrays[1], np.float32(alpha)).astype(np.float32)

    return reference


def add_multipliers(a: float, b: float, y: float) -> tuple[int, int, int] | None:
    """(M_a, M_b, shift) with M = rint(ratio * 2^shift), for the largest shift <= 30 whose sum cannot pass int32.

    `a` and `b` are signed scales, `y` is the result's. None where fewer than 8 fraction bits would be left.
    """
    for shift in range(30, arithmetic.SMALLEST_SHIFT - 1, -1):
        ma, mb = (int(np.rint(s / y * 2.0**shift)) for s in (a, b))
        if arithmetic.sum_fits(ma, mb, shift):
            return ma, mb, shift
    return None


def _lower_sum(call: QuantizedCall) -> Int8Form | str:
    a, b = call.q
    if a is None or b is None or call.out is None:
        return "it needs two quantized operands and a quantized result"
    if call.joined:
        return _lower_sum_chain(a, b, call)
    if INT16X4 in (a.dtype, b.dtype, call.out.dtype):
        return _lower_int16_sum(a, b, call.out, call)
    found = add_multipliers(a.scale, call.attrs["alpha"] * b.scale, call.out.scale)
    if found is None:
        return f"its scales {a.scale:.3g}, {b.scale:.3g} and {call.out.scale:.3g} are too far apart for int32"
    attrs = {
        "a_multiplier": found[0],
        "b_multiplier": found[1],
        "shift": found[2],
        "lo": call.lo,
        "hi": call.hi,
    }
    return Int8Form("q8ta_add", (0, 1), attrs)


def _lower_sum_chain(a: QParams, b: QParams, call: QuantizedCall) -> Int8Form | str:
    """The multipliers of an add at the start of a chain. They are those for a result with the larger operand's scale,
    so that the sum does not depend on the result's."""
    scales = a.scale, call.attrs["alpha"] * b.scale
    reached = a.span * a.scale + b.span * abs(scales[1])
    if INT16X4 in (a.dtype, b.dtype):
        unit = 2.0 ** np.ceil(np.log2(reached)) / 2**28
        multipliers = {f"{name}_multiplier": float(np.float32(s / unit)) for name, s in zip("ab", scales, strict=True)}
        return chain.lower(call, "q16ta_add_chain", unit, reached, (0, 1), multipliers)
    unit = max(map(abs, scales))
    found = add_multipliers(*scales, unit)
    if found is None:
        return f"its scales {a.scale:.3g} and {b.scale:.3g} are too far apart for int32"
    attrs = {"a_multiplier": found[0], "b_multiplier": found[1]}
    return chain.lower(call, "q8ta_add_chain", unit / 2.0 ** found[2], reached, (0, 1), attrs)


def _lower_int16_sum(a: QParams, b: QParams, y: QParams, call: QuantizedCall) -> Int8Form | str:
    unit = 2.0 ** arithmetic.fraction(y.dtype) / y.scale
    factors = float(np.float32(a.scale * unit)), float(np.float32(call.attrs["alpha"] * b.scale * unit))
    if not arithmetic.terms_fit(a.span * factors[0], b.span * factors[1]):
        return f"its operands' scales {a.scale:.3g} and {b.scale:.3g} are too large for the result's, {y.scale:.3g}"
    attrs = {"a_multiplier": factors[0], "b_multiplier": factors[1], "lo": call.lo, "hi": call.hi}
    return Int8Form("q16ta_add", (0, 1), attrs)


def _lower_mul(call: QuantizedCall) -> Int8Form | str:
    a, b = call.q
    if a is None or b is None or call.out is None:
        return "it needs two quantized operands and a quantized result"
    if call.joined:
        scale = a.scale * b.scale
        return chain.lower(call, "q8ta_mul_chain", scale, scale * a.span * b.span, (0, 1), {})
    multiplier = np.float32(a.scale * b.scale / call.out.scale)
    if not np.isfinite(multiplier):
        return "the ratio of its scales is not a finite float32"
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


def pair_fields(call: Call) -> Params:
    """The uniform fields of the zero points of two operands, and of what the result is stored with."""
    zeros = {f"{name}_zero": np.int32(zero) for name, zero in zip("ab", call.zeros, strict=False)}
    return {**arithmetic.stored_fields(call), **zeros}


def _mul_params(call: Call) -> Params:
    return {**pair_fields(call), "multiplier": np.float32(call.attrs["multiplier"])}


def _int16_sum_params(call: Call) -> Params:
    return {
        **pair_fields(call),
        **{name: np.float32(call.attrs[name]) for name in ("a_multiplier", "b_multiplier")},
        "shift": np.uint32(arithmetic.fraction(call.q.dtype)),
    }


def number_of(b: Builder, operand: Any, other: str) -> float | None:
    """A Python number, or the value of a one-element constant that adds no dimensions to `other`; else None."""
    if not isinstance(operand, str):
        return float(operand)
    array = b.array(operand)
    fits = array is not None and array.size == 1 and array.ndim <= len(b.type(other).shape)
    return float(array.reshape(())) if array is not None and fits else None


def spread(b: Builder, left: str, right: str) -> tuple[str, str]:
    """Two values whose shapes broadcast in the last three dimensions only."""
    shapes = [b.type(name).shape for name in (left, right)]
    shape = np.broadcast_shapes(*shapes)
    if len(shape) <= 4 or shapes[0][:-3] == shapes[1][:-3]:
        return left, right
    first, second = (
        name if found == shape else b.aten("aten.expand.default", {"self": name, "size": shape})
        for name, found in zip((left, right), shapes, strict=True)
    )
    return first, second


def _import(op: str, sign: float = 1.0) -> Import:
    """The importer of aten's a OP b. b may be a number, and either shape may broadcast. `sign` is that of b in a
    sum."""

    def rule(b: Builder, args: Mapping[str, Any]) -> str:
        alpha = sign * float(args.get("alpha", 1))
        left, right = args["self"], args["other"]
        first = number_of(b, left, right) if isinstance(right, str) else None
        if first is not None and not b.is_constant(right):
            factor, term = (first, 0.0) if op == "mul" else (alpha, first)
            return b.emit("affine", (right,), {"factor": factor, "term": term})
        second = number_of(b, right, left)
        if second is not None:
            factor, term = (second, 0.0) if op == "mul" else (1.0, alpha * second)
            return b.emit("affine", (left,), {"factor": factor, "term": term})
        return b.emit(op, spread(b, left, right), {} if op == "mul" else {"alpha": alpha})

    return rule


_SHAPES: tuple[tuple[Shape, Shape], ...] = (
    ((1, 5, 3, 7), (1, 5, 3, 7)),
    ((2, 8, 4, 4), (2, 8, 1, 1)),
    ((2, 6, 3, 5), (1, 6, 1, 1)),
    ((3, 1, 5), (7, 1)),
    ((13,), (13,)),
    ((4, 9), (1,)),
    ((2, 3, 2, 3, 5), (2, 3, 1, 3, 5)),
)


def onnx_rule(aten: str, **arguments: Any) -> Import:
    """The importer of an ONNX operator of two or more operands, each joined to the ones before it."""

    def rule(b: Builder, args: Mapping[str, Any]) -> str:
        first, *others = map(str, args["inputs"])
        for other in others:
            first = b.aten(aten, {"self": first, "other": other, **arguments})
        return first

    return rule


def _onnx_mean(b: Builder, args: Mapping[str, Any]) -> str:
    total = b.onnx("Sum", args["inputs"])
    return b.emit("divide", (total,), {"divisor": float(len(args["inputs"]))})


_ONNX: Mapping[str, Mapping[str, Import]] = {
    "add": {
        "Add": onnx_rule("aten.add.Tensor"),
        "Sub": onnx_rule("aten.sub.Tensor"),
        "Sum": onnx_rule("aten.add.Tensor"),
        "Mean": _onnx_mean,
    },
    "mul": {"Mul": onnx_rule("aten.mul.Tensor")},
}


def _cases(attrs: Sequence[Attrs]) -> tuple[Case, ...]:
    found = [Case(shapes, attrs[i % len(attrs)]) for i, shapes in enumerate(_SHAPES)]
    return (*found, Case(_SHAPES[0], attrs[0], "saturate"), Case(_SHAPES[1], attrs[0], "ties"))


_LINES = (
    ((2, 3, 10), (10,)),
    ((1, 1, 8), (3, 7, 8)),
    ((3, 7, 8), (8,)),
    ((8, 1, 1), (2, 8, 4, 5)),
    ((7,), (3, 7)),
)
"""Operands that repeat what lies beside each other."""


def _float_op(name: str, function: Callable[[Array, Array, Any], Array], int8: ToInt8) -> Op:
    summed = name != "mul"
    imports = {"add": _import("add"), "sub": _import("add", -1.0)} if summed else {"mul": _import("mul")}
    return Op(
        name=name,
        operands=(Operand("a", dtypes=NUMBERS), Operand("b", dtypes=NUMBERS)),
        infer=broadcast_numbers,
        reference=_float_reference(function),
        schema={"alpha": Attr("float", low=-1e30, high=1e30)} if summed else {},
        kernels=(flat.kernel(name, ("binary", f"apply={name}"), ("a", "b"), _float_params),),
        aten={
            f"aten.{aten}{mark}.{overload}": rule
            for aten, rule in imports.items()
            for mark in ("", "_")
            for overload in ("Tensor", "Scalar")
        },
        onnx=_ONNX[name],
        int8=Arithmetic(
            int8,
            ("norm", "activation") if summed else ("norm", "addend", "activation"),
            reads_int16=True,
            gives_int16=True,
        ),
        reads=reads_same_place,
        cases=(
            (*_cases(({"alpha": 1.0}, {"alpha": 2.0}, {"alpha": -0.5})), *(Case(s, {"alpha": 0.5}) for s in _LINES))
            if summed
            else _cases(({},))
        ),
        tolerance=1e-6,
    )


add = _float_op("add", lambda a, b, alpha: a + alpha * b, _lower_sum)
mul = _float_op("mul", lambda a, b, _: a * b, _lower_mul)


def packed_kernels(
    name: str,
    *files: str,
    params: Callable[[Call], Params] = no_params,
    constants: Callable[[Call], Mapping[str, int]] = lambda call: {},
) -> tuple[Kernel, ...]:
    """Kernels of an operator on two packed values: by whole words where all shapes are the same, else by elements."""
    files = ("binary_packed", *files, f"apply={name}")
    return (
        Kernel(
            name,
            (*files, "words"),
            (ANY_INT8,),
            ANY_INT8,
            synced=True,
            threads=eight_words,
            supports=lambda call, target: call.inputs[0].shape == call.inputs[1].shape == call.output.shape,
            params=params,
            constants=constants,
        ),
        Kernel(f"{name}.broadcast", (*files, "map"), (ANY_INT8,), ANY_INT8, params=params, constants=constants),
    )


def _line(call: Call) -> int | None:
    """Which operand is one line that every line of the result takes, as a bias is; None where neither is."""
    shape = call.output.shape
    for at, (line, whole) in enumerate((call.inputs, call.inputs[::-1])):
        if whole.shape == shape and line.numel == line.shape[-1] == shape[-1] and line.numel < whole.numel:
            return at
    return None


def _line_kernel(name: str, params: Callable[[Call], Params]) -> Kernel:
    """By whole words where an operand is one line."""
    return Kernel(
        f"{name}.line",
        lambda call: (
            "line",
            "binary_packed",
            f"apply={name}",
            "words",
            *(() if _line(call) else ("load=load_line_first",)),
        ),
        (ONLY_4W,),
        ONLY_4W,
        supports=lambda call, target: _line(call) is not None,
        params=lambda call: {**params(call), "line": np.uint32(-(-call.output.shape[-1] // 4))},
        threads=four_words,
    )


_words, _elements = packed_kernels("q8ta_add", params=_int8_sum_params)
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
    kernels=(_words, _line_kernel("q8ta_add", _int8_sum_params), _elements),
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
