"""The operators of elementwise functions of one tensor: one for each row of `functions.py`.

In int8 and int16 each is a table made from its float64 definition. In float32 unary.wgsl computes all of them; there a
denormal number may count as a zero of the same sign.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import DTYPES, FLOAT32, INT32, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.int8 import Elementwise
from q8ta_wgpu.ir.kernel import Kernel, Params
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import FLOAT_MAX, NUMBERS, Case, Op, Operand, number, one_dtype, reads_same_place, same_as_first
from q8ta_wgpu.kernels.elementwise import flat
from q8ta_wgpu.kernels.elementwise.functions import ROWS, Row

_SHAPES: tuple[Shape, ...] = ((1, 5, 3, 7), (2, 8, 4, 4), (67,), (3, 1, 5), (2, 3, 2, 3, 5), (7, 13), (3, 11, 1, 1))


def _params(row: Row) -> Callable[[Call], Params]:
    def params(call: Call) -> Params:
        values = [call.attrs[name] for name in row.schema]
        at = _float32(row, np.array([0.0, -0.0, np.inf, -np.inf, np.nan]), call.attrs)
        zero, minus_zero, infinity, minus_infinity, _ = map(int, at.view(np.uint32))
        return {
            **{name: np.float32(v) for name, v in zip("abc", (*values, 0, 0, 0), strict=False)},
            "limits": (zero, minus_zero, infinity, minus_infinity),
            "at_nan": at[4],
        }

    return params


def _float32(row: Row, x: Array, attrs: Attrs) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(row.function(x.astype(np.float64), attrs)).astype(np.float32)


def _reference(row: Row) -> Callable[[Call, Sequence[Array]], Array]:
    def reference(call: Call, arrays: Sequence[Array]) -> Array:
        if row.of_integers is None or call.inputs[0].dtype != INT32:
            return _float32(row, arrays[0], call.attrs)
        return row.of_integers(arrays[0].astype(np.int64), call.attrs).astype(DTYPES[call.output.dtype])

    return reference


def _infer_numbers(row: Row) -> Callable[[tuple[TensorType, ...], Attrs], tuple[Shape, str]]:
    def infer(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
        dtype = one_dtype(types, attrs)
        if dtype == INT32 and attrs.get("divisor") == 0:
            raise GraphError("integers are divided by 0")
        return types[0].shape, FLOAT32 if row.compares else dtype

    return infer


def _kernel(row: Row) -> Kernel:
    def params(call: Call) -> Params:
        if call.inputs[0].dtype != INT32:
            return _params(row)(call)
        values = (*(call.attrs[key] for key in row.schema), 0.0, 0.0)
        return {name: number(value, INT32) for name, value in zip("ab", values, strict=False)}

    integers = ("unary_int32", "map", "compute=of_integer", f"at_integer={row.name}_int32")
    return flat.kernel(row.name, ("unary", f"at_number={row.name}_of"), ("x",), params, integers)


def _bounded(row: Row) -> Callable[[Array, Attrs], Array]:
    def function(x: Array, attrs: Attrs) -> Array:
        with np.errstate(all="ignore"):
            return np.clip(row.function(np.asarray(x, np.float64), attrs), -FLOAT_MAX, FLOAT_MAX)

    return function


def _shapes(name: str) -> tuple[Shape, ...]:
    """Three of _SHAPES, by the function's name: those of one do not depend on the other rows."""
    first = zlib.crc32(name.encode()) % len(_SHAPES)
    return (*_SHAPES, *_SHAPES)[first : first + 3]


def _op(row: Row) -> Op:
    return Op(
        name=row.name,
        operands=(Operand("x", dtypes=NUMBERS if row.of_integers else (FLOAT32,)),),
        infer=_infer_numbers(row) if row.of_integers else same_as_first,
        reference=_reference(row),
        schema=row.schema,
        kernels=(_kernel(row),),
        int8=Elementwise(
            _bounded(row),
            row.clamp,
            row.as_curve,
            row.whole,
            row.jumps,
            reads_int16=True,
            gives_int16=True,
        ),
        reads=reads_same_place,
        cases=tuple(Case((shape,), row.attrs[i % len(row.attrs)]) for i, shape in enumerate(_shapes(row.name))),
        tolerance=row.tolerance,
    )


OPS = tuple(map(_op, ROWS))
