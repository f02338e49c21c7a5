"""div, pow, hypot, atan2, maximum, minimum and comparisons of two tensors, with broadcasting.

In int8 each is a table of 256 x 256 entries. With an int16 operand, div, maximum, minimum and comparisons are integer
arithmetic (binary_int16.py). Bools are 0 and 1: a logical "and" is a minimum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import DTYPES, FLOAT32, INT8, INT8X4, INT16, INT16X4, INT32, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.int8 import Arithmetic, Int8Form, QuantizedCall, ToInt8
from q8ta_wgpu.ir.kernel import FLOAT, Kernel, Params
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import NUMBERS, Builder, Case, Import, Op, Operand, one_dtype, reads_same_place
from q8ta_wgpu.kernels.elementwise import flat
from q8ta_wgpu.kernels.elementwise.binary_int16 import Lower, lower_comparison, lower_extreme, lower_quotient
from q8ta_wgpu.kernels.elementwise.binary_packed import INT8_PAIR, packed_kernels
from q8ta_wgpu.kernels.elementwise.broadcasting import broadcast, broadcast_numbers, number_of, onnx_rule, spread
from q8ta_wgpu.kernels.elementwise.table import entry_bits
from q8ta_wgpu.kernels.lib.onnx_calls import by_aten

Function = Callable[[Array, Array], Array]


def _infer_table(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    if types[2].shape != (256, 256):
        raise GraphError(f"a table of two values has 256 x 256 entries, found shape {types[2].shape}")
    return broadcast(types[:2], attrs)[0], INT16X4 if types[2].dtype == INT16 else INT8X4


def _reference_table(call: Call, arrays: Sequence[Array]) -> Array:
    a, b, table = arrays
    return np.asarray(table[a.astype(np.int64) + 128, b.astype(np.int64) + 128])


def _lower(function: Function, int16: Lower | None) -> ToInt8:
    def lower(call: QuantizedCall) -> Int8Form | str:
        a, b = call.q
        if a is None or b is None or call.out is None:
            return "it needs two quantized operands and a quantized result"
        if int16 and INT16X4 in (a.dtype, b.dtype):
            return int16(a, b, call.out, call)
        with np.errstate(all="ignore"):
            values = function(arithmetic.levels(a)[:, None], arithmetic.levels(b))
        return Int8Form("q8ta_binary_table", (0, 1, arithmetic.table(values, call.out, call.lo, call.hi)), {})

    return lower


def _reference(function: Function, integers: Function | None) -> Callable[[Call, Sequence[Array]], Array]:
    def reference(call: Call, arrays: Sequence[Array]) -> Array:
        if integers is not None and call.inputs[0].dtype == INT32:
            return integers(*(x.astype(np.int64) for x in arrays)).astype(DTYPES[call.output.dtype])
        a, b = (x.astype(np.float64) for x in arrays)
        with np.errstate(all="ignore"):
            return function(a, b).astype(np.float32)

    return reference


def _import_div(b: Builder, args: Mapping[str, Any]) -> str:
    number = number_of(b, args["other"], args["self"])
    if number is None:
        return b.emit("div", spread(b, args["self"], args["other"]))
    return b.aten("aten.div.Scalar", {**args, "other": number})


def _import_power(b: Builder, args: Mapping[str, Any]) -> str:
    number = number_of(b, args["exponent"], args["self"])
    if number is None:
        return b.emit("pow_tensors", spread(b, args["self"], args["exponent"]))
    return b.aten("aten.pow.Tensor_Scalar", {"self": args["self"], "exponent": number})


def _import_divide(b: Builder, args: Mapping[str, Any]) -> str:
    """A division with a rounding mode: down, towards zero or none."""
    number = number_of(b, args["other"], args["self"])
    if number is not None:
        return b.aten("aten.div.Scalar_mode", {**args, "other": number})
    match args["rounding_mode"]:
        case "floor":
            return b.emit("floor_divide_tensors", spread(b, args["self"], args["other"]))
        case "trunc":
            return b.emit("trunc", (b.emit("div", spread(b, args["self"], args["other"])),))
    return _import_div(b, args)


def _import_remainder(b: Builder, args: Mapping[str, Any]) -> str:
    number = number_of(b, args["other"], args["self"])
    if number is not None:
        return b.aten("aten.remainder.Scalar", {**args, "other": number})
    return b.emit("remainder_tensors", spread(b, args["self"], args["other"]))


def _import_extreme(op: str) -> Callable[[Builder, Mapping[str, Any]], str]:
    """The importer of maximum or minimum. With a number it is a clamp."""
    bound = "min" if op == "maximum" else "max"

    def rule(b: Builder, args: Mapping[str, Any]) -> str:
        for x, other in ((args["self"], args["other"]), (args["other"], args["self"])):
            if not b.is_constant(x) and (number := number_of(b, other, x)) is not None:
                return b.aten("aten.clamp.default", {"self": x, "min": None, "max": None, bound: number})
        return b.emit(op, spread(b, args["self"], args["other"]))

    return rule


def _import_pair(op: str) -> Callable[[Builder, Mapping[str, Any]], str]:
    return lambda b, args: b.emit(op, spread(b, args["self"], args["other"]))


_MIRRORED = {"gt": "lt", "ge": "le", "lt": "gt", "le": "ge", "eq": "eq", "ne": "ne"}


def _import_compare(name: str) -> Callable[[Builder, Mapping[str, Any]], str]:
    """The importer of a comparison. a < b is imported as b > a. With a number it is an operator of one tensor."""

    def rule(b: Builder, args: Mapping[str, Any]) -> str:
        left, right = args["self"], args["other"]
        for x, other, op in ((left, right, name), (right, left, _MIRRORED[name])):
            if not b.is_constant(x) and (number := number_of(b, other, x)) is not None:
                return b.aten(f"aten.{op}.Scalar", {"self": x, "other": number})
        if name in ("lt", "le"):
            left, right = right, left
        return b.emit(_MIRRORED[name] if name in ("lt", "le") else name, spread(b, left, right))

    return rule


def _import_logical(op: str) -> Callable[[Builder, Mapping[str, Any]], str]:
    """The importer of a logical operator. Numbers that are not 0 are true."""

    def rule(b: Builder, args: Mapping[str, Any]) -> str:
        sides = (b.emit("ne_scalar", (args[name],), {"number": 0.0}) for name in ("self", "other"))
        first, second = map(b.truth, sides)
        return b.emit(op, spread(b, first, second))

    return rule


def _holds(compare: Function) -> Function:
    """A float64 function that is 1 where the comparison holds in float32, as in torch, else 0."""
    return lambda a, b: compare(a.astype(np.float32), b.astype(np.float32)).astype(np.float64)


def _divided(function: Function) -> Function:
    """A function of integers and their divisors, in which a divisor of 0 counts as 1."""
    return lambda a, b: function(a, np.where(b == 0, 1, b))


def _infer_comparison(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    one_dtype(types, attrs)
    return broadcast(types, attrs)


def _import_bits(op: str, of_bools: Import | None) -> Import:
    """The importer of `op`, an operator on the bits of int32. Either operand may be a number. `of_bools` imports the
    same call of bools; None refuses it."""

    def rule(b: Builder, args: Mapping[str, Any]) -> str:
        pair = args["self"], args["other"]
        if not any(isinstance(x, str) and b.array(x) is None and b.type(x).dtype == INT32 for x in pair):
            if of_bools is None:
                raise b.refuse("it computes with the bits of integers: of int32 it is supported")
            return str(of_bools(b, args))
        left, right = (x if isinstance(x, str) else b.constant(np.asarray(int(x), np.int32)) for x in pair)
        return b.emit(op, spread(b, left, right))

    return rule


def _bitwise(name: str) -> tuple[tuple[str, str], ...]:
    return tuple((f"bitwise_{name}", overload) for overload in ("Tensor", "Scalar", "Scalar_Tensor"))


def _shifts(name: str, short: str) -> tuple[tuple[str, str], ...]:
    overloads = tuple((f"bitwise_{name}", overload) for overload in ("Tensor", "Tensor_Scalar", "Scalar_Tensor"))
    return *overloads, (f"__{short}__", "Tensor"), (f"__{short}__", "Scalar")


def _shifted(function: Function) -> Function:
    """A function of integers and of shifts, which are clamped to 0..31 bits."""
    return lambda a, b: function(a, np.clip(b, 0, 31)).astype(np.int32)


def _of_integers(name: str) -> tuple[str, ...]:
    return "binary_int32", "map", "compute=of_two", f"function_of_two={name}_int32"


_SHAPES: tuple[tuple[Shape, Shape], ...] = (
    ((1, 5, 3, 7), (1, 5, 3, 7)),
    ((2, 8, 4, 4), (2, 8, 1, 1)),
    ((3, 1, 5), (7, 1)),
    ((2, 3, 2, 3, 5), (2, 3, 1, 3, 5)),
)


def _params(call: Call) -> Params:
    """NaN as a uniform field: WGSL has no constant for it."""
    return {"not_a_number": np.float32(np.nan).view(np.uint32)}


def _onnx_mod(b: Builder, args: Mapping[str, Any]) -> str:
    """ONNX's Mod. With `fmod` the result has the sign of the first operand, else of the second."""
    left, right = args["inputs"]
    if not args["fmod"]:
        return b.aten("aten.remainder.Tensor", {"self": left, "other": right})
    if (divisor := number_of(b, right, left)) is not None:
        return b.aten("aten.fmod.Scalar", {"self": left, "other": divisor})
    quotient = b.emit("trunc", (b.emit("div", spread(b, left, right)),))
    return b.emit("add", spread(b, left, b.emit("mul", spread(b, quotient, right))), {"alpha": -1.0})


_PAIR = ("self", "other")

_ONNX: Mapping[str, Mapping[str, Any]] = {
    "div": {"Div": onnx_rule("aten.div.Tensor")},
    "remainder_tensors": {"Mod": _onnx_mod},
    "pow_tensors": {"Pow": by_aten("aten.pow.Tensor_Tensor", "self", "exponent")},
    "maximum": {"Max": onnx_rule("aten.maximum.default"), "Or": by_aten("aten.logical_or.default", *_PAIR)},
    "minimum": {"Min": onnx_rule("aten.minimum.default"), "And": by_aten("aten.logical_and.default", *_PAIR)},
    "gt": {"Greater": by_aten("aten.gt.Tensor", *_PAIR), "Less": by_aten("aten.lt.Tensor", *_PAIR)},
    "ge": {"GreaterOrEqual": by_aten("aten.ge.Tensor", *_PAIR), "LessOrEqual": by_aten("aten.le.Tensor", *_PAIR)},
    "eq": {"Equal": by_aten("aten.eq.Tensor", *_PAIR)},
    "ne": {"Xor": by_aten("aten.logical_xor.default", *_PAIR)},
}


def _op(
    name: str,
    function: Function,
    aten: Mapping[str, Any],
    tolerance: float,
    int16: Lower | None = None,
    integers: Function | None = None,
) -> Op:
    """An operator of two tensors.

    Args:
        name: of the operator, and of its function in binary.wgsl.
        function: its definition, of float64 arrays.
        aten: its importer functions.
        tolerance: as for Op.
        int16: its lowering with an int16 operand.
        integers: its definition for int32 operands, of int64 arrays. A comparison gives bools, others give integers.
    """
    dtypes = NUMBERS if integers else (FLOAT32,)
    compares = integers in (np.greater, np.greater_equal, np.equal, np.not_equal)

    files = ("binary", f"apply={name}")

    return Op(
        name=name,
        operands=(Operand("a", dtypes=dtypes), Operand("b", dtypes=dtypes)),
        infer=_infer_comparison if compares else broadcast_numbers if integers else broadcast,
        reference=_reference(function, integers),
        kernels=(flat.kernel(name, files, ("a", "b"), _params, integers=_of_integers(name) if integers else ()),),
        aten=aten,
        onnx=_ONNX.get(name, {}),
        int8=Arithmetic(_lower(function, int16), reads_int16=int16 is not None, gives_int16=True),
        reads=reads_same_place,
        cases=tuple(map(Case, _SHAPES)),
        tolerance=tolerance,
    )


OPS = (
    _op(
        "div",
        np.divide,
        {f"aten.{name}.Tensor": _import_div for name in ("div", "div_")},
        1e-6,
        lower_quotient,
    ),
    _op(
        "floor_divide_tensors",
        np.floor_divide,
        {"aten.div.Tensor_mode": _import_divide},
        1e-6,
        integers=_divided(np.floor_divide),
    ),
    _op(
        "remainder_tensors",
        np.remainder,
        {"aten.remainder.Tensor": _import_remainder},
        1e-6,
        integers=_divided(np.remainder),
    ),
    _op("pow_tensors", np.power, {"aten.pow.Tensor_Tensor": _import_power}, 1e-5),
    _op("hypot", np.hypot, {"aten.hypot.default": _import_pair("hypot")}, 1e-6),
    _op("atan2_tensors", np.arctan2, {"aten.atan2.default": _import_pair("atan2_tensors")}, 1e-5),
    _op(
        "maximum",
        np.maximum,
        {
            **{f"aten.{name}": _import_extreme("maximum") for name in ("maximum.default", "max.other")},
            "aten.logical_or.default": _import_logical("maximum"),
        },
        0.0,
        lower_extreme("q16ta_maximum"),
        np.maximum,
    ),
    _op(
        "minimum",
        np.minimum,
        {
            **{f"aten.{name}": _import_extreme("minimum") for name in ("minimum.default", "min.other")},
            "aten.logical_and.default": _import_logical("minimum"),
        },
        0.0,
        lower_extreme("q16ta_minimum"),
        np.minimum,
    ),
    *(
        _op(name, _holds(compare), aten, 0.0, lower_comparison(f"q16ta_{name}"), compare)
        for name, compare, aten in (
            ("gt", np.greater, {f"aten.{name}.Tensor": _import_compare(name) for name in ("gt", "lt")}),
            ("ge", np.greater_equal, {f"aten.{name}.Tensor": _import_compare(name) for name in ("ge", "le")}),
            ("eq", np.equal, {"aten.eq.Tensor": _import_compare("eq")}),
            (
                "ne",
                np.not_equal,
                {
                    "aten.ne.Tensor": _import_compare("ne"),
                    "aten.logical_xor.default": _import_logical("ne"),
                },
            ),
        )
    ),
    *(
        Op(
            name=name,
            operands=(Operand("a", dtypes=(INT32,)), Operand("b", dtypes=(INT32,))),
            infer=broadcast_numbers,
            reference=_reference(np.add, integers),
            kernels=(Kernel(name, _of_integers(name), (FLOAT,), FLOAT),),
            aten={f"aten.{aten}.{overload}": _import_bits(name, of_bools) for aten, overload in overloads},
            reads=reads_same_place,
            cases=tuple(map(Case, _SHAPES[:2])),
        )
        for name, integers, of_bools, overloads in (
            ("bitwise_and", np.bitwise_and, _import_extreme("minimum"), _bitwise("and")),
            ("bitwise_or", np.bitwise_or, _import_extreme("maximum"), _bitwise("or")),
            ("bitwise_xor", np.bitwise_xor, _import_compare("ne"), _bitwise("xor")),
            ("shift_left", _shifted(np.left_shift), None, _shifts("left_shift", "lshift")),
            ("shift_right", _shifted(np.right_shift), None, _shifts("right_shift", "rshift")),
        )
    ),
    Op(
        name="q8ta_binary_table",
        operands=(*INT8_PAIR, Operand("table", constant=True, dtypes=(INT8, INT16))),
        infer=_infer_table,
        reference=_reference_table,
        reads=reads_same_place,
        kernels=packed_kernels("q8ta_binary_table", "binary_table", constants=entry_bits),
    ),
)
