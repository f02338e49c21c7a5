"""div, pow, hypot, atan2, maximum, minimum and comparisons of two tensors, with broadcasting.

In int8 each is a table of 256 x 256 entries. With an int16 operand, div is integer arithmetic (quotient_int16.py); the
others stay in float32, in which extremes and comparisons are exact. Bools are 0 and 1: a logical "and" is a minimum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import DTYPES, FLOAT32, INT8, INT8X4, INT16, INT16X4, INT32, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.int8 import Arithmetic, Int8Form, QuantizedCall, ToInt8
from q8ta_wgpu.ir.kernel import FLOAT, Kernel, Params
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import NUMBERS, Case, Op, Operand, one_dtype, reads_same_place
from q8ta_wgpu.kernels.elementwise import flat, quotient_int16
from q8ta_wgpu.kernels.elementwise.binary_packed import INT8_PAIR, packed_kernels
from q8ta_wgpu.kernels.elementwise.broadcasting import broadcast, broadcast_numbers
from q8ta_wgpu.kernels.elementwise.table import entry_bits

Function = Callable[[Array, Array], Array]


def _infer_table(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    if types[2].shape != (256, 256):
        raise GraphError(f"a table of two values has 256 x 256 entries, found shape {types[2].shape}")
    return broadcast(types[:2], attrs)[0], INT16X4 if types[2].dtype == INT16 else INT8X4


def _reference_table(call: Call, arrays: Sequence[Array]) -> Array:
    a, b, table = arrays
    return np.asarray(table[a.astype(np.int64) + 128, b.astype(np.int64) + 128])


def _lower(function: Function) -> ToInt8:
    def lower(call: QuantizedCall) -> Int8Form:
        if (of_number := _with_number(function, call)) is not None:
            return of_number
        a, b, out = call.quantized(), call.quantized(1), call.result
        if INT16X4 in (a.dtype, b.dtype):  # only div reads int16
            return quotient_int16.lower(a, b, out, call)
        with np.errstate(all="ignore"):
            values = function(arithmetic.levels(a)[:, None], arithmetic.levels(b))
        return Int8Form("q8ta_binary_table", (0, 1, arithmetic.table(values, out, call.lo, call.hi)), {})

    return lower


def _with_number(function: Function, call: QuantizedCall) -> Int8Form | None:
    """The table of a function one of whose operands is a constant of one element; None for other operands."""
    for position, x in enumerate(call.q):
        constant, shapes = call.constants.get(1 - position), [t.shape for t in call.inputs]
        if x is None or call.out is None or not isinstance(constant, np.ndarray) or constant.size != 1:
            continue
        if np.broadcast_shapes(*shapes) == shapes[position]:
            levels, number = arithmetic.levels(x), constant.astype(np.float64).reshape(())
            with np.errstate(all="ignore"):
                values = function(number, levels) if position else function(levels, number)
            return Int8Form("q8ta_table", (position, arithmetic.table(values, call.out, call.lo, call.hi)), {})
    return None


def _reference(function: Function, integers: Function | None) -> Callable[[Call, Sequence[Array]], Array]:
    def reference(call: Call, arrays: Sequence[Array]) -> Array:
        if integers is not None and call.inputs[0].dtype == INT32:
            return integers(*(x.astype(np.int64) for x in arrays)).astype(DTYPES[call.output.dtype])
        a, b = (x.astype(np.float64) for x in arrays)
        with np.errstate(all="ignore"):
            return function(a, b).astype(np.float32)

    return reference


def _holds(compare: Function) -> Function:
    """A float64 function that is 1 where the comparison holds in float32, as in torch, else 0."""
    return lambda a, b: compare(a.astype(np.float32), b.astype(np.float32)).astype(np.float64)


def _divided(function: Function) -> Function:
    """A function of integers and their divisors, in which a divisor of 0 counts as 1."""
    return lambda a, b: function(a, np.where(b == 0, 1, b))


def _infer_comparison(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    one_dtype(types, attrs)
    return broadcast(types, attrs)


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


def _op(
    name: str,
    function: Function,
    tolerance: float,
    integers: Function | None = None,
) -> Op:
    """An operator of two tensors.

    Args:
        name: of the operator, and of its function in binary.wgsl.
        function: its definition, of float64 arrays.
        tolerance: as for Op.
        integers: its definition for int32 operands, of int64 arrays. A comparison gives bools, others give integers.
    """
    dtypes = NUMBERS if integers else (FLOAT32,)
    compares = integers in (np.greater, np.greater_equal, np.equal, np.not_equal)

    files = ("binary", "extremes", f"apply={name}")

    return Op(
        name=name,
        operands=(Operand("a", dtypes=dtypes), Operand("b", dtypes=dtypes)),
        infer=_infer_comparison if compares else broadcast_numbers if integers else broadcast,
        reference=_reference(function, integers),
        kernels=(flat.kernel(name, files, ("a", "b"), _params, _of_integers(name) if integers else ()),),
        int8=Arithmetic(_lower(function), reads_int16=name == "div", gives_int16=True, by_element=True),
        reads=reads_same_place,
        cases=tuple(map(Case, _SHAPES)),
        tolerance=tolerance,
    )


OPS = (
    _op("div", np.divide, 1e-6),
    _op("floor_divide_tensors", np.floor_divide, 1e-6, integers=_divided(np.floor_divide)),
    _op("remainder_tensors", np.remainder, 1e-6, integers=_divided(np.remainder)),
    _op("pow_tensors", np.power, 1e-5),
    _op("hypot", np.hypot, 1e-6),
    _op("atan2_tensors", np.arctan2, 1e-5),
    _op("maximum", np.maximum, 0.0, np.maximum),
    _op("minimum", np.minimum, 0.0, np.minimum),
    *(
        _op(name, _holds(compare), 0.0, compare)
        for name, compare in (
            ("gt", np.greater),
            ("ge", np.greater_equal),
            ("eq", np.equal),
            ("ne", np.not_equal),
        )
    ),
    *(
        Op(
            name=name,
            operands=(Operand("a", dtypes=(INT32,)), Operand("b", dtypes=(INT32,))),
            infer=broadcast_numbers,
            reference=_reference(np.add, integers),
            kernels=(Kernel(name, _of_integers(name), (FLOAT,), FLOAT),),
            reads=reads_same_place,
            cases=tuple(map(Case, _SHAPES[:2])),
        )
        for name, integers in (
            ("bitwise_and", np.bitwise_and),
            ("bitwise_or", np.bitwise_or),
            ("bitwise_xor", np.bitwise_xor),
            ("shift_left", _shifted(np.left_shift)),
            ("shift_right", _shifted(np.right_shift)),
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
